"""The one place that keeps secrets out of files and messages.

A setting is secret by its name (api_key, token, password ...), a part of a URL by its place
(user:password@, ?token=). Only memory and child processes have the value; what is written has
`***`, and a run that goes on is given it again. Knows neither files nor the settings there are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ludus.errors import LudusError

MASK = "***"
_SURE = (
    r"secret(?!ar)|passw|passphrase|credential|authorization|(?<![a-z])pwd(?![a-z])"
    r"|(?:api|private|access|signing)_?key|token$"
)
_NUMBER = re.compile(r"(?:password|passwd|passphrase|pwd|pin|secret|(?:api|access)_?key)$")
_WORDS = r"(?<![a-z])(?:auth|bearer|cookie|pass|pw|jwt)(?![a-z])"
_SECRET = re.compile(rf"{_SURE}|token(?![a-z])|{_WORDS}")

# The token of a header, the password of a URL or a lone token in its place, and query values.
_URL = re.compile(r"(?P<kept>://[^\s/?#:@'\"]*:)(?P<secret>[^\s/?#'\"]+)(?=@)")
_LONE = re.compile(r"(?P<kept>\bhttps?://)(?P<secret>[^\s/?#:@'\"]+)(?=@)")
_BEARER = re.compile(r"(?P<kept>\b[Bb]earer +)(?P<secret>[^\s'\"]+)")
_QUERY = re.compile(r"(?P<kept>[?&;](?P<name>[\w.-]+)=)(?P<secret>[^\s&;#'\"]+)")
_PAIR = re.compile(r"(?P<kept>(?P<name>[\w.-]+)(?:=|:\s+))(?P<secret>[^\s&;,'\"{}\[\]()]+)")
_MASKED = re.compile(
    r"\*\*\*|.*\b[Bb]earer +\*\*\*.*|.*(?::|//)\*\*\*@.*|.*[?&;][\w.-]+=\*\*\*.*", re.DOTALL
)
_LONG = 8  # a shorter secret may be a part of ordinary words

# The secrets that this process was given. They may come back in the message of an environment.
_known: set[str] = set()


def is_secret(name: str, value: Any = "?") -> bool:
    """Whether a setting is one, by its name: env.args.api_key, --hub-token, privateKey."""
    if isinstance(value, bool | None) or value in ("", [], {}):
        return False
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.rpartition(".")[2])
    pattern = _NUMBER if isinstance(value, int | float) else _SECRET
    return pattern.search(words.replace("-", "_").lower()) is not None


def masked(value: Any, name: str = "") -> Any:
    """A tree of settings as it may be written: secrets by name are ***, URLs lose theirs."""
    if is_secret(name, value):
        return MASK
    if isinstance(value, Mapping):
        return {key: masked(below, str(key)) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return [masked(below) for below in value]
    return _masked_urls(value) if isinstance(value, str) else value


def _masked_urls(text: str) -> str:
    for pattern in (_BEARER, _URL, _LONE):
        text = pattern.sub(rf"\g<kept>{MASK}", text)
    return _QUERY.sub(_by_name, text)


def _by_name(hit: re.Match[str]) -> str:
    return f"{hit['kept']}{MASK}" if is_secret(hit["name"]) else hit[0]


def masked_command(words: Sequence[str]) -> list[str]:
    """A command line: the values of secret settings and options, and those in URLs."""
    found, secret = [], False
    for word in words:
        found.append(MASK if secret and not word.startswith("-") else _masked_word(word))
        secret = word.startswith("-") and "=" not in word and is_secret(word)
    return [str(hide(word)) for word in found]


def _masked_word(word: str) -> str:
    name, sign, value = word.partition("=")
    if sign and value and is_secret(name):
        return f"{name}={MASK}"
    return _PAIR.sub(_by_name, _masked_urls(word))  # as in env.args={api_key: abc}


def learn(tree: Mapping[str, Any]) -> None:
    """Remember the secrets of a tree of settings, for `hide`."""
    _known.update(s for s in _secrets(tree, "", False) if len(s) >= 4 and MASK not in s)


def _secrets(value: Any, name: str, inside: bool) -> Iterator[str]:
    inside = inside or is_secret(name, value)
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield from _secrets(below, str(key), inside)
    elif isinstance(value, list | tuple):
        for below in value:
            yield from _secrets(below, "", inside)
    elif inside and not isinstance(value, bool | None):
        yield str(value)
    elif isinstance(value, str):
        yield from (hit["secret"] for p in (_BEARER, _URL, _LONE) for hit in p.finditer(value))
        yield from (hit["secret"] for hit in _QUERY.finditer(value) if is_secret(hit["name"]))


def hide(value: Any) -> Any:
    """A text, or a tree of them, without any secret this process knows and without those of
    URLs. For messages, which may quote anything."""
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
    return _masked_urls(value)


def is_masked(value: Any) -> bool:
    """Whether a value read from a file lacks its secret; in a list or table, any of them."""
    if isinstance(value, list | tuple):
        return any(map(is_masked, value))
    if isinstance(value, Mapping):
        return any(map(is_masked, value.values()))
    return isinstance(value, str) and _MASKED.fullmatch(value) is not None


def variable(key: str) -> str:
    """The environment variable of a setting: env.args.api_key -> LUDUS_ENV__ARGS__API_KEY."""
    return "LUDUS_" + key.replace(".", "__").upper()


def refuse_masked(flat: Mapping[str, Any]) -> None:
    """E110 if a setting (dotted key -> value) still lacks its secret."""
    missing = [key for key, value in flat.items() if is_masked(value)]
    if missing:
        raise LudusError(
            "E110",
            f"{', '.join(missing)}: a secret that no file holds, and that was not given",
            where="config.yaml of the run",
            why="what a run leaves may be passed on, so it has *** in the place of secrets",
            fix=f"export {variable(missing[0])}=...   (or type  {missing[0]}=... )",
        )
