"""Read and write YAML: values with their line numbers, and 1e-3 as a number.

It does not know which keys exist.
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ludus.errors import LudusError
from ludus.secret_masking import masked_setting
from ludus.track.atomic_files import DEPTH, read_bytes, reason

Key = tuple[str, ...]
LIMIT = 256 << 10  # bytes of a file; PyYAML needs seconds for this much
NODES = 20_000  # values in a file, including those that aliases repeat
_DIGITS = 40  # of the longest integer in a setting
_BRACKET = re.compile(r"[][{}]")
_QUOTED = re.compile(r"\s'(?!<)[^']{3}.*", re.DOTALL)
_HALF = re.compile(r"\\[uU](?:0000)?[dD][89a-fA-F]")
# Exceptions that PyYAML raises for malformed numbers, dates and tags.
_BAD = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


# YAML values that JSON, and so a checkpoint, cannot store. Bytes would also escape the checks.
_NOT_JSON = {
    "binary": "bytes",
    "timestamp": "a date",
    "set": "a set",
    "omap": "a list of pairs (omap)",
    "pairs": "a list of pairs",
}


class _RefusedError(ValueError):
    """The reason for refusing a text, without quoting it."""


class _Loader(yaml.SafeLoader):
    """A loader that reads 1e-3 as a number; YAML 1.1 reads it as text."""


_Loader.yaml_implicit_resolvers = dict(yaml.SafeLoader.yaml_implicit_resolvers)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?\d[\d_]*(?:\.\d*)?[eE][-+]?\d+$"),
    list("-+0123456789"),
)


def _integer(loader: _Loader, node: yaml.ScalarNode) -> int:
    if len(str(node.value)) > _DIGITS:
        raise _RefusedError(f"a number of {len(str(node.value))} digits")
    return loader.construct_yaml_int(node)


_Loader.add_constructor("tag:yaml.org,2002:int", _integer)


@dataclass
class Document:
    """A tree of plain values with the line number (from 1) of each key path."""

    tree: dict[str, Any]
    lines: dict[Key, int] = field(default_factory=dict)

    def place(self, name: str, key: Key) -> str:
        """Return the place of a key, or of the nearest table above it, in the file `name`."""
        for end in range(len(key), 0, -1):
            if key[:end] in self.lines:
                return f"{name}:{self.lines[key[:end]]}"
        return name


def parse_value(text: str, key: str = "", where: str = "") -> Any:
    """Parse one value as typed after `key=`. Errors show it without secrets."""
    try:
        loader, node = _root(text)
        if node is None:
            return None
        _check_node(node, (key,) if key else (), where, lines=False)
        return loader.construct_document(node)
    except LudusError:  # also a ValueError
        raise
    except (yaml.YAMLError, *_BAD) as error:
        shown = masked_setting(f"{key}={text}").partition("=")[2]
        raise LudusError(
            "E102",
            f"{shown!r} cannot be read as a value: {_problem(error)}",
            where=where,
            why="values are YAML: numbers, words, [lists], {key: value}",
            fix="quote the whole argument for the shell, as in 'algo.torso.hidden=[64, 64]'",
        ) from None


def read_file(path: Path, *, follow: bool = False) -> Document:
    """Read a configuration file. Raise E105 if it is missing or malformed. `follow`: allow links
    and pipes, for a file that the user named."""
    try:
        if follow:
            with path.open("rb") as file:
                text = file.read(LIMIT + 1).decode()
        else:
            text = read_bytes(path, LIMIT).decode()
        if len(text) > LIMIT:
            raise OSError(errno.EFBIG, f"it is larger than {LIMIT:,} bytes")
    except (OSError, UnicodeDecodeError) as error:
        why = reason(error)
        raise LudusError(
            "E105", f"cannot read {path}: {why}", where=str(path), fix="check the path after -c"
        ) from None
    return parse_document(text, str(path))


def parse_document(text: str, name: str) -> Document:
    document = Document({})
    try:
        loader, node = _root(text)
        if node is None:
            return document
        if not isinstance(node, yaml.MappingNode):
            raise LudusError(
                "E105",
                f"{name} is not a table of settings",
                where=f"{name}:1",
                fix="write  algo: {...}, env: {...}, run: {...}",
            )
        _check_node(node, (), name)
        document.tree = _table(loader, node, (), document.lines, name)
        return document
    except LudusError:  # also a ValueError
        raise
    except (yaml.YAMLError, *_BAD) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{name}:{mark.line + 1}" if mark is not None else name
        raise LudusError(
            "E105",
            f"{name} is not valid YAML: {_problem(error)}",
            where=where,
            fix="correct the line; tabs cannot be used for indentation",
        ) from None


def _problem(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, yaml.YAMLError):  # names that it quotes may be parts of a secret
        return _QUOTED.sub("", str(getattr(error, "problem", None) or error))
    return f"a value cannot be read{f' ({error})' if isinstance(error, _RefusedError) else ''}"


def _root(text: str) -> tuple[_Loader, yaml.Node | None]:
    """Return the loader and the root of a text. Refuse deeply nested brackets, which PyYAML detects
    slowly, and lone surrogates."""
    if _HALF.search(text):
        raise _RefusedError("it holds half of a character")
    depth = 0
    for bracket in _BRACKET.findall(text):  # counts brackets in quotes, too
        depth += 1 if bracket in "[{" else -1
        if depth > 4 * DEPTH:
            raise _RefusedError("it is nested too deeply")
    loader = _Loader(text)
    return loader, loader.get_single_node()


def _check_node(root: yaml.Node, at: Key, name: str, lines: bool = True) -> None:
    """Refuse bytes, dates and other values that JSON cannot store, and aliases that expand to too
    many values or contain themselves. `at`: the key of the root; `name`: the source; `lines`:
    whether to add a line number."""
    sizes: dict[int, int] = {}  # of finished nodes, by identity
    open_: set[int] = set()  # ancestors of the current node

    def size(node: yaml.Node, at: Key, depth: int) -> int:
        key = id(node)
        if key in open_:
            raise _RefusedError("it holds itself")
        if depth > DEPTH:
            raise _RefusedError("it is nested too deeply")
        kind = _NOT_JSON.get(str(node.tag).rpartition(":")[2])
        if kind is not None:
            raise LudusError(
                "E102",
                f"{'.'.join(at) or 'the value'} holds {kind}",
                where=f"{name}:{node.start_mark.line + 1}" if lines else name,
                why="settings are text, numbers, true, false, null, lists and tables",
                fix="put it in quotes, as text",
            )
        if key not in sizes:
            open_.add(key)
            parts: list[tuple[yaml.Node, Key]] = []
            if isinstance(node, yaml.SequenceNode):
                parts = [(part, at) for part in node.value]
            elif isinstance(node, yaml.MappingNode):
                for name_node, part in node.value:
                    named = name_node.value if isinstance(name_node, yaml.ScalarNode) else ""
                    parts += [(name_node, at), (part, (*at, named))]
            sizes[key] = 1 + sum(size(part, below, depth + 1) for part, below in parts)
            open_.discard(key)
        if sizes[key] > NODES:
            raise _RefusedError(f"its aliases make more than {NODES:,} values")
        return sizes[key]

    size(root, at, 0)


def _table(
    loader: _Loader, node: yaml.MappingNode, at: Key, lines: dict[Key, int], name: str
) -> dict[str, Any]:
    """Build a table, and expand dotted keys (run.seed: 1) to nested tables."""
    loader.flatten_mapping(node)
    tree: dict[str, Any] = {}
    written: set[Key] = set()
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        parts = tuple(str(loader.construct_object(key_node, deep=True)).split("."))
        if len(at) + len(parts) > DEPTH:
            raise _RefusedError("it is nested too deeply")
        if parts in written:
            raise LudusError(
                "E105",
                f"{'.'.join(at + parts)} is written twice in {name}",
                where=f"{name}:{line}",
                fix="keep one of them",
            )
        written.add(parts)
        here, target = at + parts, tree
        for depth, part in enumerate(parts[:-1]):
            lines.setdefault(at + parts[: depth + 1], line)
            below = target.setdefault(part, {})
            if not isinstance(below, dict):
                raise LudusError(
                    "E105",
                    f"{'.'.join(at + parts[: depth + 1])} is both a value and a table in {name}",
                    where=f"{name}:{line}",
                    fix="write the value under its own key of the table",
                )
            target = below
        lines[here] = line
        if isinstance(value_node, yaml.MappingNode):
            value: Any = _table(loader, value_node, here, lines, name)
        else:
            value = loader.construct_object(value_node, deep=True)
        old = target.get(parts[-1])
        target[parts[-1]] = (
            {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
        )
    return tree


class _Dumper(yaml.SafeDumper):
    """Writes flat lists on one line."""


def _flow_list(dumper: yaml.SafeDumper, data: list[Any]) -> yaml.Node:
    flat = all(not isinstance(x, dict | list) for x in data)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=flat)


_Dumper.add_representer(list, _flow_list)


def write_text(tree: dict[str, Any]) -> str:
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
