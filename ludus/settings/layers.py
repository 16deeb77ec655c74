"""Merge layers of settings by precedence, and record the source of each value.

It knows neither algorithms nor files.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ludus.schedules import Schedule, ramp
from ludus.settings.yaml import Key

# Later wins.
Rank = IntEnum("Rank", "DEFAULT VARIANT PRESET FILE ENVIRONMENT COMMAND", start=0)


@dataclass
class Layered:
    """The merged tree, with the rank and name of the layer of each leaf."""

    tree: dict[str, Any] = field(default_factory=dict)
    origin: dict[Key, tuple[int, str]] = field(default_factory=dict)

    def lay(
        self, tree: Mapping[str, Any], rank: int, source: Callable[[Key], str] | str, at: Key = ()
    ) -> None:
        """Merge a tree into the table at `at`."""
        below = self._table(at)
        if "kind" in tree and tree["kind"] != below.get("kind"):
            for name in list(below):  # remove the defaults of the old kind
                if self.rank((*at, name)) <= Rank.DEFAULT:
                    self.drop((*at, name))
        for name, value in tree.items():
            key = (*at, name)
            if isinstance(value, Mapping) and value:
                if not isinstance(below.get(name), dict):
                    self._clear(key)
                    below[name] = {}
                self.lay(value, rank, source, key)
            else:
                self._clear(key)
                below[name] = dict(value) if isinstance(value, Mapping) else value
                self.origin[key] = (rank, source if isinstance(source, str) else source(key))

    def put(self, key: Key, value: Any, rank: int, source: str) -> None:
        """Set one value at one path."""
        for part in reversed(key):
            value = {part: value}
        self.lay(value, rank, source)

    def _table(self, at: Key) -> dict[str, Any]:
        table = self.tree
        for part in at:
            table = table[part]
        return table

    def _under(self, key: Key) -> dict[Key, tuple[int, str]]:
        """Return the leaves at or under a key."""
        return {k: origin for k, origin in self.origin.items() if k[: len(key)] == key}

    def _clear(self, key: Key) -> None:
        for old in self._under(key):
            del self.origin[old]

    def drop(self, key: Key) -> None:
        del self._table(key[:-1])[key[-1]]
        self._clear(key)

    def rank(self, key: Key) -> int:
        """Return the highest rank of the leaves at or under a key; -1 if it is not set."""
        return max((rank for rank, _ in self._under(key).values()), default=-1)

    def source(self, key: Key) -> str:
        """Return the source of the leaf, or of the nearest table above it that was set whole."""
        for end in range(len(key), 0, -1):
            if key[:end] in self.origin:
                return self.origin[key[:end]][1]
        return next((source for _, source in reversed(self._under(key).values())), "default")


def plain(value: Any) -> Any:
    """Convert settings to plain YAML values, with schedules in their short form."""
    if isinstance(value, Schedule):
        return _plain_schedule(value)
    if isinstance(value, BaseModel):
        return {name: plain(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value


def _plain_schedule(schedule: Schedule) -> Any:
    if schedule.over is None and schedule.fraction is None and schedule.start == schedule.end:
        return schedule.start
    try:  # the short form has only six digits
        if ramp(str(schedule)) == schedule:
            return str(schedule)
    except ValueError:
        pass
    return schedule.model_dump()


def leaves(tree: Mapping[str, Any], at: Key = ()) -> Iterator[tuple[Key, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, (*at, name))
        else:
            yield (*at, name), value


def defaults_of(model: type[BaseModel]) -> dict[str, Any]:
    """Return the default values of a model as a tree, without fields that have none."""
    return {
        name: plain(info.get_default(call_default_factory=True))
        for name, info in model.model_fields.items()
        if not info.is_required()
    }


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the models of a field: one for a table, several for a tagged union."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [] if annotation is Schedule else [annotation]
    origin = get_origin(annotation)
    if origin is Annotated:
        return models_in(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return [m for part in get_args(annotation) for m in models_in(part)]
    return []


def fitting(annotation: Any, table: Any) -> list[type[BaseModel]]:
    """Return the models of a field that fit its table: the only one, or that of the same kind."""
    choices = models_in(annotation)
    kind = table.get("kind") if isinstance(table, Mapping) else None
    same = [c for c in choices if (tag := c.model_fields.get("kind")) and tag.default == kind]
    return choices if len(choices) == 1 else same


def model_at(model: type[BaseModel], tree: Any, key: Key) -> type[BaseModel] | None:
    """Return the model of the table at `key`; the tree selects among kinds."""
    for name in key:
        tree = tree.get(name) if isinstance(tree, Mapping) else None
        info = model.model_fields.get(name)
        choices = fitting(info.annotation, tree) if info is not None else []
        if not choices:
            return None
        model = choices[0]
    return model


def field_at(model: type[BaseModel], tree: Any, key: Key) -> FieldInfo | None:
    """Return the field at `key`; the tree selects among kinds."""
    table = model_at(model, tree, key[:-1]) if key else None
    return table.model_fields.get(key[-1]) if table is not None else None
