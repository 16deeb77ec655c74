"""Mask secrets in files and messages.

A setting is secret by its name (api_key, tokens, password ...). Part of a text is secret by its
position: the password of a URL, a query value, a header, `password=` of a DSN, JSON. Only memory
and child processes hold the value. Files contain `***`, and the user supplies the value again when
a run continues.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ludus.errors import LudusError

MASK = "***"
_SURE = (
    r"secret(?!ar)|passw|passphrase|credential|authorization|(?<![a-z])pwds?(?![a-z])"
    r"|(?:api|private|access|signing|ssh|encryption|account|shared|auth)_?key"
)
_WORDS = r"(?<![a-z])(?:auth|bearer|cookie|pass|pw|jwt)(?![a-z])"
_SECRET = re.compile(rf"{_SURE}|tokens?$|tokens?(?![a-z])|(?:cookie|jwt)s$|{_WORDS}")
# Numbers: passwords always, other secrets from four digits on; `tokens: 512` is a count.
_NUMBER = re.compile(r"(?:password|passwd|passphrase|pwd|pin|secret|(?:api|access)_?key)$")
_LONG_NUMBER = re.compile(rf"(?:{_SURE}|token|{_WORDS})$")
_COUNT = re.compile(r"(?:^|_)(?:max|min|num|n|pad|bos|eos|unk|cls|sep|mask|special|stop)_tokens?$")

# In any text: the token of a header, the password of a URL, a token in place of its user, and
# query values. A port and a path (host:8080/a@b) are no password.
_SCHEME = r"(?:bearer|basic|token|negotiate|apikey|key)"
_HEADER = r"\b(?:proxy-)?authorization['\"]?\s{0,4}[:=]\s{0,4}['\"]?"
_IN_MESSAGES = (
    re.compile(r"(?P<kept>\b[Bb]earer +)(?P<secret>[^\s'\"]+)"),
    re.compile(rf"(?P<kept>{_HEADER}{_SCHEME}\s{{1,4}})(?P<secret>[^\s'\",}}]+)", re.IGNORECASE),
    re.compile(
        r"(?P<kept>//(?!\[)[^\s/?#:@'\"]*:)"
        r"(?P<secret>(?!\d{1,5}(?:[/?#]|$))(?:[^\s'\":]|:(?!//)){1,512})(?=@)"
    ),
    re.compile(r"(?P<kept>\b(?:https?|wss?)://)(?P<secret>[^\s/?#:@'\"]+)(?=@)"),
    re.compile(r"(?P<kept>//)(?=[^\s/?#:@]*\d)(?P<secret>[^\s/?#:@'\"]{16,1024})(?=@)"),
    re.compile(r"(?P<kept>[?&;#](?P<name>[\w.-]+)=)(?P<secret>[^\s&;#'\"]+)"),
)
# Only in settings, because a sentence may look alike: other headers, and  me:PASSWORD@host
_IN_SETTINGS = (
    re.compile(
        rf"(?P<kept>{_HEADER}(?:(?:digest|hoba|oauth|signature)\s{{1,4}})?)"
        rf"(?P<secret>(?!(?:{_SCHEME}\s+)?\*\*\*)[^\s'\"][^\n]*)",
        re.IGNORECASE,
    ),
    re.compile(
        r"(?P<kept>(?:^|(?<=[\s=,'\"]))(?!mailto:)[\w.+-]{1,64}:)(?P<secret>[^\s@/'\"]{1,512})"
        r"(?=@(?!sha256:)[\w(\[])"
    ),
)
# name=value, name: value and "name": value, of which the value may be quoted, a list or a table.
_NAME = re.compile(r"(?P<name>[\w.-]{1,64})(?:['\"]\s{0,8}:\s{0,8}|\s{0,8}=\s{0,8}|:\s{1,8})")
_VALUE = re.compile(
    r"\"(?:\\.|\"\"|[^\"\\])*\"?|'(?:\\.|''|[^'\\])*'?"
    r"|\{(?:[^{}]|\{[^{}]*\}?)*\}?|\[(?:[^\[\]]|\[[^\[\]]*\]?)*\]?"
    r"|[^\s&;,'\"{}\[\]()](?:[^\s&;,}\])]|[&;,](?!\s|$|[\w.-]{1,64}[=:]))*"
)
_NOTHING = ("", "null", "none", "~", "true", "false", MASK)
_MASKED = re.compile(
    rf"(?:[=:/'\"]\s{{0,8}}|\b(?:{_SCHEME}|digest|hoba|oauth|signature)\s{{1,4}})\*\*\*"
    r"(?:$|[\s@&;#,'\"})\]])",
    re.IGNORECASE,
)
_LONG = 8  # a shorter secret may be a part of ordinary words

# Secrets given to this process. Messages of an environment may contain them.
_known: set[str] = set()


def is_secret(name: str, value: Any = "?") -> bool:
    """Whether a setting is secret by its name: env.args.api_key, --hub-token, privateKey."""
    if isinstance(value, bool | None) or value in ("", [], {}):
        return False
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.rpartition(".")[2])
    words = words.replace("-", "_").lower()
    if _COUNT.search(words):
        return False
    numbers = _numbers(value)
    if not numbers:
        return _SECRET.search(words) is not None
    if isinstance(value, list | tuple | Mapping):
        words = re.sub(r"(?<!token)s$", "", words)
    long = any(isinstance(n, int) and abs(n) >= 1000 for n in numbers)
    return bool(_NUMBER.search(words) or (long and _LONG_NUMBER.search(words)))


def _numbers(value: Any) -> list[int | float]:
    """Return the numbers in a value, or nothing if it contains other types."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        parts = [_numbers(part) for part in value]
        return [n for part in parts for n in part] if all(parts) else []
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) else []


def masked(value: Any, name: str = "") -> Any:
    """Return a tree of settings with all secrets replaced by ***."""
    return _masked(value, name, [])


def _masked(value: Any, name: str, found: list[str], inside: bool = False) -> Any:
    """Mask a tree of settings, and add its secrets to `found`. `inside`: within a secret table."""
    inside = inside or is_secret(name, value)
    hidden = value
    if isinstance(value, Mapping):
        below = [(k, _masked(part, str(k), found, inside)) for k, part in value.items()]
        # A key may be a URL.
        hidden = {_masked_text(k, found) if isinstance(k, str) else k: part for k, part in below}
    elif isinstance(value, list | tuple):
        hidden = [_masked(part, "", found, inside) for part in value]
    elif inside and not isinstance(value, bool | None):
        found.append(str(value))
    elif isinstance(value, str):
        hidden = _masked_text(value, found)
    return MASK if inside else hidden


def _masked_text(text: str, found: list[str]) -> str:
    """Mask a text of the settings, and add its secrets to `found`."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            tree = json.loads(text)
            hidden = _masked(tree, "", found)
            return text if hidden == tree else json.dumps(hidden, ensure_ascii=False)
        except (ValueError, RecursionError):
            pass  # not JSON: treat it as plain text
    return _masked_pairs(_replaced((*_IN_MESSAGES, *_IN_SETTINGS), text, found), found)


def _replaced(patterns: Iterable[re.Pattern[str]], text: str, found: list[str]) -> str:
    def hidden(hit: re.Match[str]) -> str:
        if "name" in hit.re.groupindex and not is_secret(hit["name"]):
            return hit[0]
        found.append(hit["secret"])
        return f"{hit['kept']}{MASK}"

    for pattern in patterns:
        text = pattern.sub(hidden, text)
    return text


def _masked_pairs(text: str, found: list[str]) -> str:
    parts, end = [], 0
    for hit in _NAME.finditer(text):
        name = hit["name"]
        if hit.start() < end or not is_secret(name) or name.lower().endswith("authorization"):
            continue  # headers are masked already
        match = _VALUE.match(text, hit.end())
        value = match[0] if match is not None else ""
        inner = value.strip("'\"")
        if inner.lower() in _NOTHING or not is_secret(name, _number_or_text(inner)):
            continue
        found += [] if inner[:1] in ("{", "[") else [inner]
        parts += [text[end : hit.end()], MASK]
        end = hit.end() + len(value)
    return "".join([*parts, text[end:]])


def _number_or_text(text: str) -> int | str:
    return int(text) if re.fullmatch(r"-?\d{1,40}", text) else text


def masked_command(words: Sequence[str]) -> list[str]:
    """Mask the values of secret settings and options in a command line."""
    return [str(hide(word)) for word in _masked_words(words, [])]


def _masked_words(words: Sequence[str], found: list[str]) -> Iterator[str]:
    secret = False
    for word in words:
        if secret and not word.startswith("-"):
            found.append(word)
            yield MASK
        else:
            yield masked_setting(word, found)
        secret = word.startswith("-") and "=" not in word and is_secret(word)


def masked_setting(word: str, found: list[str] | None = None) -> str:
    """Mask a typed `key=value`, and add its secrets to `found`."""
    found = [] if found is None else found
    name, sign, value = word.partition("=")
    if sign and is_secret(name, _number_or_text(value)):
        found.append(value)
        return f"{name}={MASK}"
    return _masked_text(word, found)  # as in env.args={api_key: abc}


def learn(tree: Mapping[str, Any]) -> None:
    """Remember the secrets of a tree of settings, for `hide`."""
    found: list[str] = []
    _masked(tree, "", found)
    _remember(found)


def learn_command(words: Sequence[str]) -> None:
    """Remember the secrets of a command line, for `hide`."""
    found: list[str] = []
    list(_masked_words(words, found))
    _remember(found)


def _remember(secrets: Iterable[str]) -> None:
    _known.update(s for s in secrets if len(s) >= 4 and MASK not in s)


def hide(value: Any) -> Any:
    """Mask all known secrets, and secrets in URLs and headers, in a text or a tree of texts. For
    messages, which may quote any text."""
    if isinstance(value, Mapping):
        return {key: hide(below) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return [hide(below) for below in value]
    if not isinstance(value, str):
        return value
    for secret in sorted(_known, key=len, reverse=True):
        if len(secret) >= _LONG:
            value = value.replace(secret, MASK)
        else:
            value = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", MASK, value)
    return _replaced(_IN_MESSAGES, value, [])


def is_masked(value: Any) -> bool:
    """Whether a value from a file contains a mask in place of a secret."""
    if isinstance(value, list | tuple):
        return any(map(is_masked, value))
    if isinstance(value, Mapping):
        return any(is_masked(part) for pair in value.items() for part in pair)
    return isinstance(value, str) and (value == MASK or _MASKED.search(value) is not None)


def variable(key: str) -> str:
    """The environment variable of a setting: env.args.api_key -> LUDUS_ENV__ARGS__API_KEY."""
    return "LUDUS_" + key.replace(".", "__").upper()


def refuse_masked(flat: Mapping[str, Any]) -> None:
    """Raise E110 if a setting (dotted key -> value) still contains a mask."""
    missing = [key for key, value in flat.items() if is_masked(key) or is_masked(value)]
    if missing:
        first = missing[0]
        give = f"export {variable(first)}=...   (or type  {first}=... )"
        if is_masked(first):  # a variable name cannot contain it
            table = ".".join(first.split(".")[:2])
            give = f"type  '{table}={{...}}'  with the whole key"
        raise LudusError(
            "E110",
            f"{', '.join(missing)}: a secret is missing; files do not contain it",
            where="config.yaml of the run",
            why="the files of a run may be shared, so they contain *** in place of secrets",
            fix=give,
        )
