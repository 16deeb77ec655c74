"""The JSON schema of configuration files, for completion and checks in editors."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, create_model

from ludus import registry
from ludus.settings.resolve import MODELS

_BOUNDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
}


def json_schema(algo: str | None = None) -> dict[str, Any]:
    """Return the schema for one algorithm, or for all; `algo` is then a union of their tables."""
    entries = [registry.find(algo)] if algo is not None else registry.entries()
    names: dict[str, list[str]] = {}
    for entry in entries:
        names.setdefault(entry.config, []).append(entry.name)
    union: Any = None
    for config in names:
        model: Any = registry.locate(config)
        union = model if union is None else union | model
    fields: dict[str, Any] = {"algo": (union, ...)}
    fields.update({name: (model, None) for name, model in MODELS.items()})
    whole: type[BaseModel] = create_model("LudusConfig", **fields)
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
    found = schema["$defs"].get(long_name) or schema["$defs"][model.__name__]
    table: dict[str, Any] = found
    return table


def _loosen(node: Any) -> None:
    """Allow text for numbers with units and for the short form of schedules."""
    if isinstance(node, dict):
        if node.get("type") in ("integer", "number"):
            _name_bounds(node)
        for table in [node] if isinstance(node.get("properties"), dict) else []:
            for name, rule in table["properties"].items():
                if not isinstance(rule, dict):
                    continue
                _loosen(rule)
                table["properties"][name] = _with_text(rule)
        for key, below in node.items():
            if key != "properties":
                _loosen(below)
    elif isinstance(node, list):
        for item in node:
            _loosen(item)


def _name_bounds(rule: dict[str, Any]) -> None:
    """Rename bounds for which pydantic keeps its own names, as outside a union with null."""
    for ours, name in _BOUNDS.items():
        if ours in rule:
            rule[name] = rule.pop(ours)


def _with_text(rule: dict[str, Any]) -> dict[str, Any]:
    notes: dict[str, Any] = {k: rule[k] for k in ("default", "title", "description") if k in rule}
    bare = {k: v for k, v in rule.items() if k not in notes}
    options = bare.get("anyOf", [bare])
    if any(o.get("type") in ("integer", "number") for o in options if isinstance(o, dict)):
        return {"anyOf": [*options, {"type": "string"}], **notes}
    if str(bare.get("$ref", "")).endswith("/Schedule"):
        return {"anyOf": [bare, {"type": "number"}, {"type": "string"}], **notes}
    return rule
