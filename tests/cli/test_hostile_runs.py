"""One broken or hostile file takes down no listing: it costs one line, and bounded time."""

from __future__ import annotations

import ast
import json
import os
import shutil
from pathlib import Path

import pytest

import ludus
from ludus.errors import LudusError, printable
from ludus.settings.yaml import parse_value, read_file
from tests.cli.conftest import call

DEEP = 200_000  # brackets
LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


def status(text: str):
    return lambda run: (run / "status.json").write_text(text)


def config(text: str):
    return lambda run: (run / "config.yaml").write_text(text)


def fifo(name: str):
    def make(run: Path) -> None:
        (run / name).unlink()
        os.mkfifo(run / name)

    return make


def endless(name: str):
    def make(run: Path) -> None:
        (run / name).unlink()
        (run / name).symlink_to("/dev/zero")

    return make


BROKEN = {
    "text for a step": status('{"state": "finished", "step": "many", "score": [1], "updates": {}}'),
    "a list for a state": status('{"state": ["finished"], "step": 3}'),
    "brackets": status("[" * DEEP),
    "400 digits": status(f'{{"state": "finished", "step": {"9" * 400}}}'),
    "5000 digits": status(f'{{"state": "finished", "step": {"9" * 5000}}}'),
    "no json": status("not json"),
    "no object": status("[1, 2]"),
    "not utf-8": lambda run: (run / "status.json").write_bytes(b"\xff\xfe{}"),
    "a pipe": fifo("status.json"),
    "an endless device": endless("status.json"),
    "a pipe for settings": fifo("config.yaml"),
    "endless settings": endless("config.yaml"),
    "deep settings": config("[" * DEEP),
    "deep tables": config("{a: " * 1000),
    "a dotted key": config(f"{'a.' * 5000}a: 1"),
    "settings in themselves": config("algo: &x\n  name: dqn\n  again: *x\nenv: {id: e}\n"),
    "a list in itself": config("algo: {name: dqn}\nenv: {id: e}\nrun: {imports: &x [*x]}\n"),
    "a billion laughs": config(LAUGHS),
    "a number of 5000 digits": config(f"run: {{seed: {'9' * 5000}}}"),
    "a date that is none": config("run: {seed: 2001-99-99}"),
    "not settings": config("- 1\n"),
}  # fmt: skip


@pytest.fixture
def runs(finished, tmp_path):
    """A good run, and one that tests may break."""
    for name in ("good", "bad"):
        shutil.copytree(finished, tmp_path / "runs" / name, symlinks=True)
    return tmp_path / "runs"


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_file_costs_one_line(runs, what, tmp_path):
    BROKEN[what](runs / "bad")
    listed = call("ls", "--runs-dir", runs)
    assert listed.code == 0, listed.err
    rows = [line for line in listed.out.splitlines() if line.startswith(("good ", "bad "))]
    assert len(rows) == 2 and "finished" in next(r for r in rows if r.startswith("good"))
    result = [line for line in listed.err.splitlines() if "bad" in line]
    assert len(result) == 1 and result[0].startswith("warning: bad: "), listed.err
    for verb in (("compare", runs), ("report", runs, "-o", tmp_path / "page.html")):
        answer = call(*verb)
        assert answer.code == 0, answer.err
        warned = [line for line in answer.err.splitlines() if line.startswith("warning: bad: ")]
        assert len(warned) == 1 and "good" not in answer.err
    assert "Traceback" not in listed.err + answer.err


@pytest.mark.parametrize("name", ["metrics.jsonl", "episodes.csv", "evals.csv", "events.jsonl",
                                  "manifest.json", "LOCK", "eval/greedy-240.json"])  # fmt: skip
@pytest.mark.parametrize("kind", [fifo, endless])
def test_no_other_file_blocks_or_ends_a_listing(runs, name, kind, tmp_path):
    (runs / "bad" / "eval").mkdir(exist_ok=True)
    (runs / "bad" / name).touch()
    kind(name)(runs / "bad")
    for verb in (("ls", "--runs-dir", runs), ("status", runs / "bad"), ("compare", runs),
                 ("report", runs, "-o", tmp_path / "page.html")):  # fmt: skip
        answer = call(*verb)
        assert answer.code == 0, answer.err


def test_a_sort_by_any_column_stands_broken_values(runs):
    status('{"state": "x", "step": "many", "score": {}, "tag": 3, "protocol": 1}')(runs / "bad")
    for column in ("name", "tag", "algo", "seed", "state", "step", "steps", "score", "speed"):
        assert call("ls", "--runs-dir", runs, "--sort", column).code == 0


def test_compare_of_nothing_but_broken_runs_is_refused(runs):
    shutil.rmtree(runs / "good")
    config("- 1\n")(runs / "bad")
    answer = call("compare", runs)
    assert answer.code == 1 and "E303" in answer.err


REFUSED = ("[" * DEEP, "{a: " * 1000, "&x [*x]", LAUGHS, "9" * 5000, "9" * 400,
           f"{'a.' * 5000}a: 1", "2001-99-99", "!!int ''", "!!bool x", '"\\ud800"')  # fmt: skip
ESCAPE = "\x1b]0;owned\x07\x1b[31m\x9b2J"


def test_no_escape_of_a_file_reaches_the_terminal(runs, tmp_path):
    bad = runs / "bad"
    result = json.loads((bad / "status.json").read_text())
    result |= {"state": f"fin{ESCAPE}", "tag": ESCAPE, "protocol": ESCAPE, "reason": ESCAPE}
    (bad / "status.json").write_text(json.dumps(result | {f"key{ESCAPE}": ESCAPE}))
    text = (bad / "config.yaml").read_text().replace("ludus/Identity-v0", "E\\e[31m\\x9b")
    (bad / "config.yaml").write_text(text.replace("id: E", 'id: "E').replace("\\x9b", '\\x9b"'))
    (bad / "log.txt").write_text(f"a line {ESCAPE}\nanother\n")
    bad.rename(runs / f"bad{ESCAPE}")
    bad = runs / f"bad{ESCAPE}"
    for verb in (("ls", "--runs-dir", runs), ("status", bad), ("logs", bad), ("compare", runs),
                 ("report", runs, "-o", tmp_path / "p.html"), ("eval", bad, "--no-video"),
                 ("resume", bad), ("config", "diff", bad, runs / "good"), ("stop", bad),
                 ("eval", f"no{ESCAPE}"), ("ls", "--sort", ESCAPE)):  # fmt: skip
        answer = call(*verb)
        shown = answer.out + answer.err
        assert shown
        assert not [c for c in shown if ord(c) < 32 and c not in "\n\t"], verb
        assert "\x7f" not in shown and "\x9b" not in shown, verb


def test_what_is_printable():
    assert printable("é → \N{GREEK SMALL LETTER RHO}\n\tx") == "é → \N{GREEK SMALL LETTER RHO}\n\tx"
    assert printable("a\x1b[0m\x00\x7f\x9b\r") == "a\\x1b[0m\\x00\\x7f\\x9b\\x0d"
    assert printable("\u202eevil\u2066\ufeff") == "\\u202eevil\\u2066\\ufeff"


def test_verbs_print_in_one_place(root):
    for path in sorted((root / "ludus" / "cli").glob("*.py")):
        calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
        bare = [n.lineno for n in calls if isinstance(n.func, ast.Name) and n.func.id == "print"]
        assert path.name == "output.py" or not bare, f"{path.name}:{bare}: use cli.output.say"


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:12])
def test_a_file_after_c_is_refused_in_one_error(tmp_path, text):
    (tmp_path / "mine.yaml").write_text(text if ":" in text[:3] else f"run: {{seed: {text}}}")
    answer = call("train", "dqn", "CartPole-v1", "-c", tmp_path / "mine.yaml", "--dry-run")
    assert answer.code == 2 and answer.err.startswith("error[E10"), answer.err[:500]
    with pytest.raises(LudusError):
        read_file(tmp_path / "mine.yaml")
    if ":" not in text[:3]:
        with pytest.raises(LudusError):
            parse_value(text)


@pytest.mark.parametrize("section", ["run", "log", "eval", "actor"])
@pytest.mark.parametrize("value", ["5", "[1]", "null", "{0: 1}", "[]"])
def test_a_section_that_is_no_table_is_refused(tmp_path, section, value):
    (tmp_path / "mine.yaml").write_text(f"{section}: {value}\n")
    answer = call("train", "dqn", "CartPole-v1", "-c", tmp_path / "mine.yaml", "--dry-run")
    assert answer.code == 2 and answer.err.startswith("error[E10"), answer.err[:500]


def test_a_file_of_the_users_may_be_a_link_and_may_use_anchors(tmp_path):
    (tmp_path / "real.yaml").write_text("run: {seed: &s 7}\nenv: {num: *s}\n")
    (tmp_path / "mine.yaml").symlink_to("real.yaml")
    words = ("train", "dqn", "CartPole-v1", "-c", tmp_path / "mine.yaml", "--dry-run", "--json")
    result = call(*words).json["config"]
    assert result["run"]["seed"] == 7 and result["env"]["num"] == 7


@pytest.mark.parametrize("key", ["steps", "lr", "run.time"])
def test_an_integer_beyond_all_floats_is_a_bad_value(key):
    with pytest.raises(LudusError, match="E10"):
        ludus.config("dqn", "CartPole-v1", **{key: 10**400})
