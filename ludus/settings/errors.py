"""Translate pydantic's validation errors to Ludus errors: the key, its source, what to type.

Also makes two checks that pydantic does not: booleans are not numbers, and numbers are finite.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from ludus.errors import LudusError, nearest
from ludus.secret_masking import masked
from ludus.settings.layers import Layered, field_at, model_at, models_in, plain
from ludus.settings.yaml import Key
from ludus.units import parse_count, parse_number

_RANGE = re.compile(
    "greater|less|literal|enum|too_|multiple|finite|union_tag_invalid|string_pattern|string_too"
)
_LIMITS = {"ge": "at least {}", "gt": "more than {}", "le": "at most {}", "lt": "less than {}"}
_NUMBER = ("int_parsing", "int_type", "float_parsing", "float_type")


def key_of(loc: tuple[str | int, ...], tree: Any) -> Key:
    """Return pydantic's location without the tags and type names of unions."""
    key: list[str] = []
    for part in loc:
        if isinstance(tree, Mapping) and part in tree:
            tree = tree[part]
        elif isinstance(tree, list) and isinstance(part, int) and part < len(tree):
            tree = tree[part]
        else:
            continue
        key.append(str(part))
    return tuple(key)


def validate(model: type[BaseModel], section: str, layers: Layered) -> BaseModel:
    """Validate one section of the merged tree, and raise its first error."""
    while True:
        tree = layers.tree.get(section, {})
        try:
            checked = model.model_validate(tree)
        except ValidationError as error:
            if _mend(error, section, layers):
                continue
            raise _translate(error, model, section, layers) from None
        _strict(tree, checked, (section,), layers)
        return checked


def _mend(error: ValidationError, section: str, layers: Layered) -> bool:
    """Parse units of numbers (batch=1k), and drop keys of a kind that a later layer replaced."""
    changed = False
    for item in error.errors(include_url=False):
        tree = layers.tree[section]
        key = key_of(item["loc"], tree)
        if not key:
            continue
        parent: Any = tree
        for part in key[:-1]:
            parent = parent[int(part)] if isinstance(parent, list) else parent[part]
        slot: Any = int(key[-1]) if isinstance(parent, list) else key[-1]
        value, full = parent[slot], (section, *key)
        tag = layers.rank((*full[:-1], "kind"))
        if key[-1] != "kind" and not isinstance(parent, list) and -1 < layers.rank(full) < tag:
            layers.drop(full)
            return True
        if isinstance(value, str) and item["type"] in _NUMBER:
            read = parse_count if item["type"].startswith("int") else parse_number
            with suppress(ValueError):
                parent[slot] = read(value)
                changed = True
    return changed


def _strict(raw: Any, checked: Any, key: Key, layers: Layered) -> None:
    if isinstance(raw, Mapping) and isinstance(checked, BaseModel):
        for name in raw:
            if name in type(checked).model_fields:
                _strict(raw[name], getattr(checked, name), (*key, name), layers)
    elif isinstance(raw, list) and isinstance(checked, list | tuple):
        for i, (a, b) in enumerate(zip(raw, checked, strict=False)):
            _strict(a, b, (*key, str(i)), layers)
    elif isinstance(checked, int | float) and isinstance(checked, bool) != isinstance(raw, bool):
        wanted = "true or false" if isinstance(checked, bool) else "a number"
        raise _wrong_type(key, raw, wanted, layers)
    numbers = [checked] if isinstance(checked, float) else []
    if isinstance(checked, BaseModel) and not isinstance(raw, Mapping):  # a schedule in short form
        numbers = [v for v in checked.__dict__.values() if isinstance(v, float)]
    if any(not math.isfinite(x) for x in numbers):
        raise LudusError(
            "E103",
            f"{'.'.join(key)} = {masked(raw, key[-1])} is not a finite number",
            where=layers.source(key),
            fix=f"{'.'.join(key)}=<a number>",
        )


def _wrong_type(key: Key, value: Any, wanted: str, layers: Layered) -> LudusError:
    name = ".".join(key)
    return LudusError(
        "E102",
        f"{name} must be {wanted}, not {masked(value, name)!r}",
        where=layers.source(key),
        why="the value has the wrong type",
        fix=f"{name}=<{wanted}>",
    )


def unknown_key(key: Key, choices: list[str], where: str) -> LudusError:
    """Return E101 with the most similar key and the list of keys."""
    name = ".".join(key)
    table = ".".join(key[:-1])
    # Prefer names that contain the word: for actions, full_actions and not actors.
    whole = [name for name in choices if key[-1] in name.split("_")]
    guess = nearest(key[-1], whole) or nearest(key[-1], choices)
    if guess and table:
        guess = guess.replace("did you mean  ", f"did you mean  {table}.")
    names = sorted(set(choices))
    known = ", ".join(names[:24]) + (", ..." if len(names) > 24 else "")
    return LudusError(
        "E101",
        f"unknown key  {name}{guess}",
        where=where,
        why=f"{table or 'a configuration'} has: {known}" if known else "",
        fix="ludus config schema ALGO  lists every key",
    )


def _translate(
    error: ValidationError, model: type[BaseModel], section: str, layers: Layered
) -> LudusError:
    items = error.errors(include_url=False)
    first, tree = items[0], layers.tree[section]
    key = key_of(first["loc"], tree)
    full = (section, *key)
    name, where = ".".join(full), layers.source(full)
    inner = first.get("ctx", {}).get("error")
    if isinstance(inner, LudusError):
        return _placed(inner, layers)
    if first["type"] == "extra_forbidden":
        return _extra(model, tree, full, where)
    if first["type"] == "missing":
        lost = f"{name}.{first['loc'][-1]}"
        return LudusError(
            "E102", f"{lost} has no value", where=where, why="it has no default", fix=f"{lost}=..."
        )
    if first["type"].startswith("union_tag"):
        return _wrong_kind(first, name, layers.source((*full, "kind")))
    info = field_at(model, tree, key)
    same = [i for i in items if key_of(i["loc"], tree) == key]
    says = " or ".join(dict.fromkeys(_message(i) for i in same))
    if first["type"] == "value_error" and model_at(model, tree, key) is not None:
        return LudusError("E104", f"{name}: {says}", where=where, fix="change one of the two")
    if first["type"] in ("model_attributes_type", "model_type", "dict_type"):
        choices = models_in(info.annotation) if info is not None else []
        return not_a_table(full, first["input"], choices[0] if choices else None, layers)
    code = "E103" if all(_RANGE.match(i["type"]) for i in same) else "E102"
    guess, fix = _fitting(name, info, same)
    what = f"{name} = {masked(first['input'], name)!r}: {says}{guess}"
    return LudusError(code, what, where=where, fix=fix)


def _fitting(name: str, info: FieldInfo | None, items: list[Any]) -> tuple[str, str]:
    """Return (a suggestion for a misspelled word, a fix with an allowed value and its limits)."""
    # 'saber', 'machado' or 'r2d2' -> saber, machado, r2d2
    listed = [str(i["ctx"]["expected"]) for i in items if i["type"] == "literal_error"]
    words: list[str] = re.findall(r"'([^']*)'", " ".join(listed))
    given = str(items[0]["input"])
    guess = nearest(given, words) if len(listed) == len(items) else ""
    meant = next((w for w in words if guess.endswith(f"  {w} ?)")), "")
    usual = None if info is None or info.is_required() else plain(info.get_default())
    if not meant and isinstance(usual, int | float | str):
        meant = str(usual).lower() if isinstance(usual, bool) else str(usual)
    others = [w for w in words if w != meant]
    bounds = [words for words in map(_bound, info.metadata if info else ()) if words]
    if not meant and words:
        meant, *others = words
    allowed = [*bounds, *others]
    if not meant:
        meant = f"<{' and '.join(bounds) or _message(items[0]).removeprefix('should be ')}>"
        allowed = others
    others_text = f"   ({', '.join(allowed)})" if bounds else f"   or {', '.join(allowed)}"
    return guess, f"{name}={meant}{others_text if allowed else ''}"


def _bound(rule: Any) -> str:
    """Format a limit of a field. pydantic's message only names the limit that was exceeded."""
    for name, words in _LIMITS.items():
        limit = getattr(rule, name, None)
        if limit is not None:
            return words.format(f"{limit:g}" if isinstance(limit, float) else limit)
    return ""


def _placed(error: LudusError, layers: Layered) -> LudusError:
    """Add the source of the setting to an error that a validator raised."""
    key = tuple(error.where.split("."))
    if key[0] not in layers.tree:
        return error
    where = f"{error.where} ({layers.source(key)})"
    return LudusError(error.code, error.what, where=where, why=error.why, fix=error.fix)


def not_a_table(key: Key, value: Any, model: type[BaseModel] | None, layers: Layered) -> LudusError:
    """Return E102 with the keys of the table."""
    name, fields = ".".join(key), model.model_fields if model is not None else {}
    why = f"{name} has: {', '.join(fields)}" if fields else "it maps names to values"
    if "kind" in fields:
        why = "its kind decides which other keys it has"
        word = masked(value, name) if isinstance(value, str) else "..."
        fix = f"{name}.kind={word}   ludus config schema  lists the kinds"
    elif fields:
        first, info = next(iter(fields.items()))
        usual = "..." if info.is_required() else str(plain(info.get_default()))
        fix = f"{name}.{first}={usual.lower()}"  # booleans are typed as true
    else:
        fix = f"{name}={{KEY: VALUE}}"
    return LudusError(
        "E102",
        f"{name} is a table, not {masked(value, name)!r}",
        where=f"{name} ({layers.source(key)})",
        why=why,
        fix=fix,
    )


def _extra(model: type[BaseModel], tree: Any, full: Key, where: str) -> LudusError:
    """Return the error for an unknown key: E104 if another kind of its table has it, else E101."""
    info = field_at(model, tree, full[1:-1])
    choices = [c.model_fields for c in models_in(info.annotation)] if info is not None else []
    kinds = [str(c["kind"].default) for c in choices if full[-1] in c and "kind" in c]
    if not kinds:
        table = model_at(model, tree, full[1:-1])
        return unknown_key(full, list(table.model_fields) if table else [], where)
    table_name = ".".join(full[:-1])
    return LudusError(
        "E104",
        f"{'.'.join(full)} does not apply to this kind of {table_name}",
        where=where,
        why=f"it belongs to kind {' and '.join(kinds)}",
        fix=f"{table_name}.kind={kinds[0]}",
    )


def _wrong_kind(item: Any, name: str, where: str) -> LudusError:
    if item["type"] == "union_tag_not_found":
        return LudusError(
            "E104",
            f"{name} does not say which kind it is",
            where=where,
            fix=f"{name}.kind=...   ludus config schema  lists the kinds",
        )
    tag, tags = str(masked(item["ctx"]["tag"])), str(item["ctx"]["expected_tags"]).replace("'", "")
    return LudusError(
        "E103",
        f"{name}.kind = {tag} is not one of: {tags}{nearest(tag, tags.split(', '))}",
        where=where,
        fix=f"{name}.kind={tags.split(', ')[0]}   or {tags.partition(', ')[2]}",
    )


def _message(item: Any) -> str:
    text = str(item["msg"]).removeprefix("Value error, ").removeprefix("Input ")
    return re.sub(", unable to parse string as (an integer|a number)", "", text)
