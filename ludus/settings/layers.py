"""Merge layers of settings by precedence, and record the source of each value.

It knows neither algorithms nor files.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from ludus.schedules import Schedule
from ludus.settings.yaml import Key

# Later wins.
DEFAULT, VARIANT, PRESET, FILE, ENVIRONMENT, COMMAND = range(6)


@dataclass
class Layered:
    """The merged tree, with the rank and name of the layer of each leaf."""

    tree: dict[str, Any] = field(default_factory=dict)
    origin: dict[Key, tuple[int, str]] = field(default_factory=dict)

    def lay(self, tree: Mapping[str, Any], rank: int, source: Callable[[Key], str] | str) -> None:
        name = (lambda _: source) if isinstance(source, str) else source
        self._lay(self.tree, tree, (), rank, name)

    def put(self, key: Key, value: Any, rank: int, source: str) -> None:
        """Set one value at one path."""
        for part in reversed(key):
            value = {part: value}
        self.lay(value, rank, source)

    def _lay(
        self,
        below: dict[str, Any],
        above: Mapping[str, Any],
        at: Key,
        rank: int,
        source: Callable[[Key], str],
    ) -> None:
        if "kind" in above and above["kind"] != below.get("kind"):
            self._forget_defaults(below, at)
        for name, value in above.items():
            key = (*at, name)
            if isinstance(value, Mapping) and value:
                if not isinstance(below.get(name), dict):
                    self._clear(key)
                    below[name] = {}
                self._lay(below[name], value, key, rank, source)
            else:
                self._clear(key)
                below[name] = dict(value) if isinstance(value, Mapping) else value
                self.origin[key] = (rank, source(key))

    def _clear(self, key: Key) -> None:
        for old in [k for k in self.origin if k[: len(key)] == key]:
            del self.origin[old]

    def _forget_defaults(self, table: dict[str, Any], at: Key) -> None:
        """Remove the defaults of the old kind when another `kind` is chosen."""
        for name in list(table):
            key = (*at, name)
            ranks = [rank for k, (rank, _) in self.origin.items() if k[: len(key)] == key]
            if all(rank == DEFAULT for rank in ranks):
                self._clear(key)
                del table[name]

    def drop(self, key: Key) -> None:
        table: Any = self.tree
        for part in key[:-1]:
            table = table[part]
        del table[key[-1]]
        self._clear(key)

    def rank(self, key: Key) -> int:
        """Return the highest rank of the leaves at or under a key; -1 if it is not set."""
        return max((r for k, (r, _) in self.origin.items() if k[: len(key)] == key), default=-1)

    def source(self, key: Key) -> str:
        """Return the source of the leaf, or of the nearest table above it that was set whole."""
        for end in range(len(key), 0, -1):
            if key[:end] in self.origin:
                return self.origin[key[:end]][1]
        under = [s for k, (_, s) in self.origin.items() if k[: len(key)] == key]
        return under[-1] if under else "default"


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
    from ludus.schedules import ramp

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


def model_at(model: type[BaseModel], tree: Any, key: Key) -> type[BaseModel] | None:
    """Return the model of the table at `key`; the tree selects among kinds."""
    if not key:
        return model
    info = model.model_fields.get(key[0])
    below = tree.get(key[0]) if isinstance(tree, Mapping) else None
    choices = models_in(info.annotation) if info is not None else []
    if not choices:
        return None
    kind = below.get("kind") if isinstance(below, Mapping) else None
    for choice in choices:
        tag = choice.model_fields.get("kind")
        if len(choices) == 1 or (tag is not None and tag.default == kind):
            return model_at(choice, below, key[1:])
    return None
