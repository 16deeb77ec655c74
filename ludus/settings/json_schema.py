"""The JSON schema of configuration files, for completion and checks in editors."""

from __future__ import annotations

import functools
import operator
from typing import Any

from pydantic import BaseModel, create_model

from ludus import registry
from ludus.settings.resolve import MODELS

# Bounds for which pydantic keeps its own names, as outside a union with null.
_BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


def json_schema(algo: str | None = None) -> dict[str, Any]:
    """Return the schema for one algorithm, or for all; `algo` is then a union of their tables."""
    entries = [registry.find(algo)] if algo is not None else registry.entries()
    names: dict[str, list[str]] = {}
    for entry in entries:
        names.setdefault(entry.config, []).append(entry.name)
    union = functools.reduce(operator.or_, map(registry.locate, names))
    fields: dict[str, Any] = {name: (model, None) for name, model in MODELS.items()}
    whole: type[BaseModel] = create_model("LudusConfig", algo=(union, ...), **fields)
    schema = whole.model_json_schema()
    _loosen(schema)
    properties = schema["properties"]
    every = [name for group in names.values() for name in group]
    properties["algo"] = {"anyOf": [{"enum": every}, properties["algo"]]}
    properties["env"] = {"anyOf": [{"type": "string"}, properties["env"]]}
    properties["preset"] = {"type": "string", "description": "a preset's name, or none"}
    for config, group in names.items():
        _table_of(schema, registry.locate(config))["properties"]["name"] = {"enum": group}
    schema.pop("required", None)
    schema["additionalProperties"] = False
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Ludus configuration{f' for {entries[0].name}' if algo else ''}",
        **{key: value for key, value in schema.items() if key != "title"},
    }


def _table_of(schema: dict[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """Return a model's table. pydantic uses the long name if two models share the short one."""
    long_name = f"{model.__module__}__{model.__qualname__}".replace(".", "__")
    table: dict[str, Any] = schema["$defs"].get(long_name) or schema["$defs"][model.__name__]
    return table


def _loosen(node: Any) -> None:
    """Allow text for numbers with units and for the short form of schedules."""
    for below in node.values() if isinstance(node, dict) else node:
        if isinstance(below, dict | list):
            _loosen(below)
    if isinstance(node, dict):
        if node.get("type") in ("integer", "number"):
            for ours, name in _BOUNDS.items():
                if ours in node:
                    node[name] = node.pop(ours)
        if isinstance(node.get("properties"), dict):
            rules = node["properties"].items()
            node["properties"] = {name: _with_text(rule) for name, rule in rules}


def _with_text(rule: dict[str, Any]) -> dict[str, Any]:
    notes: dict[str, Any] = {k: rule[k] for k in ("default", "title", "description") if k in rule}
    bare = {k: v for k, v in rule.items() if k not in notes}
    options = bare.get("anyOf", [bare])
    if any(o.get("type") in ("integer", "number") for o in options if isinstance(o, dict)):
        return {"anyOf": [*options, {"type": "string"}], **notes}
    if any(str(o.get("$ref", "")).endswith("/Schedule") for o in options if isinstance(o, dict)):
        return {"anyOf": [*options, {"type": "number"}, {"type": "string"}], **notes}
    return rule
