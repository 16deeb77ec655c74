"""The JSON schema describes what is accepted: checked on the tree of every algorithm."""

from __future__ import annotations

import json

import pytest

from ludus import registry
from ludus.settings.json_schema import json_schema
from ludus.settings.resolve import Request, resolve
from tests.cli.conftest import call


def fits(value, rule, defs) -> bool:
    """The part of JSON schema that our schemas use."""
    if "$ref" in rule:
        return fits(value, defs[rule["$ref"].rpartition("/")[2]], defs)
    for word, some in (("anyOf", any), ("oneOf", any)):
        if word in rule:
            return some(fits(value, option, defs) for option in rule[word])
    if "enum" in rule:
        return value in rule["enum"]
    if "const" in rule:
        return value == rule["const"]
    kinds = {
        "string": str,
        "integer": int,
        "number": (int, float),
        "boolean": bool,
        "null": type(None),
        "array": list,
        "object": dict,
    }
    if not isinstance(value, kinds[rule["type"]]):
        return False
    if isinstance(value, bool) != (rule["type"] == "boolean"):
        return False
    if rule["type"] == "object" and "properties" in rule:
        known = rule["properties"]
        return all(key in known and fits(v, known[key], defs) for key, v in value.items())
    return True


@pytest.mark.parametrize("name", [entry.name for entry in registry.BUILT_IN])
def test_schema_of_one(name):
    schema = json_schema(name)
    tree = resolve(Request(name, "CartPole-v1", preset="none", environ={})).config.tree()
    assert fits(tree, schema, schema["$defs"])
    assert fits({"algo": name, "env": "X-v0", "run": {"steps": "10M"}}, schema, schema["$defs"])
    assert not fits({**tree, "runn": {}}, schema, schema["$defs"])
    assert not fits({**tree, "algo": {**tree["algo"], "lrr": 1}}, schema, schema["$defs"])
    assert not fits({**tree, "log": {"tensorboard": 1}}, schema, schema["$defs"])


def test_bounds_have_the_names_of_json_schema():
    schema = json_schema("dqn")
    run, evaluation = (schema["$defs"][x]["properties"] for x in ("RunConfig", "EvalConfig"))
    for rule in (run["steps"], run["horizon"], run["checkpoint_every"], evaluation["every"]):
        assert rule["anyOf"][0] == {"minimum": 1, "type": "integer"}
    assert run["time"]["anyOf"][0] == {"exclusiveMinimum": 0, "type": "number"}

    def keys(node):
        for key, below in node.items() if isinstance(node, dict) else enumerate(node):
            yield key
            if isinstance(below, dict | list):
                yield from keys(below)

    assert not {"ge", "gt", "le", "lt"} & set(keys(schema))


def test_schema_of_all_has_every_name():
    answer = call("config", "schema")
    schema = json.loads(answer.out)
    for entry in registry.entries():
        assert fits({"algo": {"name": entry.name}}, schema, schema["$defs"])
    assert not fits({"algo": {"name": "nothing"}}, schema, schema["$defs"])
