"""YAML in and out: values with the line they stand on, and 1e-3 read as a number.

Knows nothing of which keys exist.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ludus.errors import LudusError

Key = tuple[str, ...]


class _Loader(yaml.SafeLoader):
    """YAML 1.1 reads 1e-3 as text; people who type it mean a number."""


_Loader.yaml_implicit_resolvers = dict(yaml.SafeLoader.yaml_implicit_resolvers)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?\d[\d_]*(?:\.\d*)?[eE][-+]?\d+$"),
    list("-+0123456789"),
)


@dataclass
class Document:
    """A tree of plain values, and the line (from 1) of each key path."""

    tree: dict[str, Any]
    lines: dict[Key, int] = field(default_factory=dict)


def parse_value(text: str) -> Any:
    """One value as typed after `key=`."""
    try:
        return _Loader(text).get_single_data()
    except yaml.YAMLError as error:
        what = str(getattr(error, "problem", error))
        raise LudusError(
            "E102",
            f"{text!r} cannot be read as a value: {what}",
            why="values are YAML: numbers, words, [lists], {key: value}",
            fix="quote the whole argument for the shell, as in 'algo.torso.hidden=[64, 64]'",
        ) from None


def read_file(path: Path) -> Document:
    """A configuration file. A missing, broken or odd one is refused as E105."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise LudusError(
            "E105", f"cannot read {path}: {reason}", where=str(path), fix="check the path after -c"
        ) from None
    return parse_document(text, str(path))


def parse_document(text: str, name: str) -> Document:
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return Document({})
        if not isinstance(node, yaml.MappingNode):
            raise LudusError(
                "E105",
                f"{name} is not a table of settings",
                where=f"{name}:1",
                fix="write  algo: {...}, env: {...}, run: {...}",
            )
        document = Document({})
        document.tree = _table(loader, node, (), document.lines, name)
        return document
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{name}:{mark.line + 1}" if mark is not None else name
        problem = str(getattr(error, "problem", None) or error)
        raise LudusError(
            "E105",
            f"{name} is not valid YAML: {problem}",
            where=where,
            fix="correct the line; tabs cannot be used for indentation",
        ) from None


def _table(
    loader: _Loader, node: yaml.MappingNode, at: Key, lines: dict[Key, int], name: str
) -> dict[str, Any]:
    """Dotted keys (run.seed: 1) open out into tables, so both forms may be written."""
    loader.flatten_mapping(node)
    tree: dict[str, Any] = {}
    written: set[Key] = set()
    for key_node, value_node in node.value:
        parts = tuple(str(loader.construct_object(key_node, deep=True)).split("."))
        if parts in written:
            raise LudusError(
                "E105",
                f"{'.'.join(at + parts)} is written twice in {name}",
                where=f"{name}:{key_node.start_mark.line + 1}",
                fix="keep one of them",
            )
        written.add(parts)
        here, target = at + parts, tree
        for depth, part in enumerate(parts[:-1]):
            lines.setdefault(at + parts[: depth + 1], key_node.start_mark.line + 1)
            below = target.setdefault(part, {})
            if not isinstance(below, dict):
                raise LudusError(
                    "E105",
                    f"{'.'.join(at + parts[: depth + 1])} is both a value and a table in {name}",
                    where=f"{name}:{key_node.start_mark.line + 1}",
                    fix="write the value under its own key of the table",
                )
            target = below
        lines[here] = key_node.start_mark.line + 1
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
    """Short lists on one line; everything else as tables."""


def _flow_list(dumper: yaml.SafeDumper, data: list[Any]) -> yaml.Node:
    flat = all(not isinstance(x, dict | list) for x in data)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=flat)


_Dumper.add_representer(list, _flow_list)


def write_text(tree: dict[str, Any]) -> str:
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
