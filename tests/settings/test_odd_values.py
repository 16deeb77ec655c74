"""Values that no setting can hold, secrets in refused settings, and errors that stay short."""

from __future__ import annotations

import pytest

from ludus.errors import LudusError
from ludus.settings.keys import split_override
from ludus.settings.resolve import Request, from_tree, resolve
from ludus.settings.trust import places_in
from ludus.settings.yaml import parse_document, parse_value

ODD = {
    "bytes": ("!!binary L2V0Yy9wYXNzd2Q=", "bytes"),
    "a date": ("2024-01-31", "a date"),
    "a time": ("2024-01-31 10:00:00", "a date"),
    "a set": ("!!set {a, b}", "a set"),
    "pairs": ("!!pairs [a: 1]", "pairs"),
    "an ordered map": ("!!omap [a: 1]", "omap"),
    "in a list": ("[1, [!!binary L2V0Yw==]]", "bytes"),
    "in a table of a list": ("[{a: {b: 2024-01-31}}]", "a date"),
    "a key": ("{!!binary L2V0Yw==: 1}", "bytes"),
    "a key in a list": ("[{!!binary L2V0Yw==: 1}]", "bytes"),
}


@pytest.mark.parametrize("case", ODD)
def test_only_json_values_are_read(case):
    text, named = ODD[case]
    with pytest.raises(LudusError) as caught:
        parse_document(f"run: {{seed: 1}}\nenv:\n  args:\n    file: {text}\n", "config.yaml")
    error = caught.value
    assert error.code == "E102" and named in error.what and "env.args.file" in error.what
    assert error.where == "config.yaml:4"
    with pytest.raises(LudusError) as caught:
        parse_value(text)
    assert caught.value.code == "E102" and named in caught.value.what


def test_values_of_json_are_read():
    text = 'a: "2024-01-31"\nb: [1, 1e-3, .inf, yes, null, {c: x}]\n<<: {d: 1}\n'
    tree = parse_document(text, "x").tree
    assert tree == {
        "a": "2024-01-31",
        "b": [1, 0.001, float("inf"), True, None, {"c": "x"}],
        "d": 1,
    }


def test_what_cannot_be_judged_is_taken_for_a_path():
    assert list(places_in({"a": [b"/etc/passwd", {3, 4}], "n": 1, "f": 0.5, "t": True, "x": None}))


SECRET_SETTINGS = [
    'env.args.api_key={x: "NEEDLE1',
    "env.args.api_key=*NEEDLE1",
    "env.args.api_key=!NEEDLE1",
    "env.args.api_key=!!int NEEDLE1",
    'env.args={api_key: "NEEDLE1", x: [',
    "env.num={password: NEEDLE1}",
    "env.num=redis://me:NEEDLE1@h",
    "run.seed=[{token: NEEDLE1}]",
    "algo={password: NEEDLE1}",
    "env.args.api_key=12345678-",
]


@pytest.mark.parametrize("typed", SECRET_SETTINGS)
def test_a_refused_setting_does_not_show_its_secret(typed):
    with pytest.raises(LudusError) as caught:
        resolve(Request("dqn", "CartPole-v1", [typed], environ={}))
    for secret in ("NEEDLE1", "12345678"):
        assert secret not in str(caught.value), str(caught.value)


@pytest.mark.parametrize("text", ["{num: {password: NEEDLE1}}", "{args: {api_key: *NEEDLE1}}"])
def test_nor_does_one_of_a_file(tmp_path, text):
    file = tmp_path / "my.yaml"
    file.write_text(f"env: {text}")
    with pytest.raises(LudusError) as caught:
        resolve(Request("dqn", "CartPole-v1", files=[file], environ={}))
    assert "NEEDLE1" not in str(caught.value) and "my.yaml:1" in caught.value.where


def test_nor_does_a_variable():
    environ = {"LUDUS_ENV__ARGS__API_KEY": "{NEEDLE1"}
    with pytest.raises(LudusError) as caught:
        resolve(Request("dqn", "CartPole-v1", environ=environ))
    assert "NEEDLE1" not in str(caught.value)
    assert "LUDUS_ENV__ARGS__API_KEY" in caught.value.where


def test_a_broken_value_that_is_no_secret_is_shown():
    with pytest.raises(LudusError) as caught:
        split_override("algo.torso.hidden=[64, ")
    assert "[64, " in caught.value.what


LONG = 100_000
HUGE = {
    "an id": {"env": {"id": "x" * LONG}},
    "an id of Atari": {"env": {"id": "ALE/" + "x" * LONG}},
    "a list": {"algo": {"torso": {"hidden": [0] * LONG}}},
    "a text": {"run": {"device": "x" * LONG}},
    "a kind": {"algo": {"torso": {"kind": "x" * LONG}}},
    "a key": {"run": {"k" * LONG: 1}},
    "many keys": {"run": {f"key{i}": 1 for i in range(2000)}},
    "a table": {"run": {"seed": {f"key{i}": "x" * 99 for i in range(2000)}}},
    "a section": {"run": "x" * LONG},
    "an algorithm": {"algo": {"name": "x" * LONG}},
    "lines": {"run": {"device": "x\n" * LONG}},
}


@pytest.mark.parametrize("case", HUGE)
def test_errors_stay_short(case):
    from ludus.envs.make import probe_spec

    tree = resolve(Request("dqn", "CartPole-v1", environ={})).config.tree()
    for section, table in HUGE[case].items():
        tree[section] = tree[section] | table if isinstance(table, dict) else table
    with pytest.raises(LudusError) as caught:
        probe_spec(from_tree(tree, "config.yaml").env)
    assert len(str(caught.value)) < 4_000 and str(caught.value).count("\n") < 60


def test_the_end_of_a_long_line_is_kept():
    error = LudusError("E101", f"begin {'x' * 10_000} end", fix="\n".join(map(str, range(500))))
    assert error.what.startswith("begin ") and error.what.endswith(" end")
    assert error.fix.startswith("0\n1\n") and "more lines" in error.fix


@pytest.mark.parametrize("key", ["run.threads", "env.threads", "env.workers"])
def test_counts_of_threads_and_processes_are_bounded(key):
    with pytest.raises(LudusError) as caught:
        resolve(Request("dqn", "pong", [f"{key}={2**40}"], environ={}))
    assert caught.value.code == "E103" and "4096" in str(caught.value)
