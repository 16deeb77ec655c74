"""The same run again: what is finished stays as it is, and parts of one's own are found again."""

from __future__ import annotations

import shutil
import sys

import pytest

from ludus import registry
from ludus.settings.resolve import read_config
from tests.cli.conftest import call, train

LINE = "already at step 240 of 240; steps=+100k continues it\n"
PART = """
from ludus.registry import Entry, register
register(Entry("own", "ludus.algos.dqn:DQN", "ludus.algos.dqn:Config", "for a test"))
"""
SMALL = ["steps=60", "warmup=20", "batch=4", "tensorboard=off", "-q"]


def contents(path):
    return {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in path.rglob("*") if p.is_file()}


@pytest.mark.accept(139)
def test_a_finished_run_is_left_alone(runs):
    words = ["train", "dqn", "ludus/Identity-v0", "steps=240", "warmup=40", "batch=8"]
    words += ["tensorboard=off", "-q", "--run", "night", "--runs-dir", runs]
    first = call(*words)
    before = contents(runs)
    assert first.code == 0 and before
    for again in (words, ["resume", "night", "--runs-dir", runs]):
        answer = call(*again)
        assert (answer.code, answer.out, answer.err) == (0, LINE, "")
        assert contents(runs) == before
    result = call(*words, "--json").json
    assert (result["reason"], result["step"], result["exit_code"]) == ("already finished", 240, 0)
    assert call(*words, "seed=2").code == 1, "another run is still refused"
    assert (
        call("resume", "night", "steps=+60", "-q", "--json", "--runs-dir", runs).json["step"] >= 300
    )


def test_a_finished_run_with_a_damaged_end_goes_on(runs):
    train(runs, "--run", "night")
    weights = max((runs / "night" / "checkpoints").glob("0*")) / "model.safetensors"
    good = weights.read_bytes()
    weights.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    result = train(runs, "--run", "night").json
    assert (result["reason"], result["step"]) == ("finished", 240)
    assert weights.read_bytes() == good, "made again, and equal"


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A folder with a module in it, and a function that makes this process forget the module."""
    (tmp_path / "own_part.py").write_text(PART)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def forget():
        table = {k: v for k, v in registry._TABLE.items() if k != "own"}
        monkeypatch.setattr(registry, "_TABLE", table)
        for name in ("own_part", "moved_part"):
            sys.modules.pop(name, None)

    forget()
    yield forget
    forget()


def test_parts_are_named_each_time(elsewhere, tmp_path):
    first = ["train", "own", "ludus/Identity-v0", *SMALL, "--run", "x"]
    assert call(*first).code == 2, "nobody knows it yet"
    assert call(*first, "--import", "own_part").code == 0
    config = tmp_path / "runs" / "x" / "config.yaml"
    assert "imports: [own_part]" in config.read_text()
    named = ["--import", "own_part"]
    for words, more in (
        (["resume", "x", "steps=+20", "-q"], named),
        (["resume", "x", "steps=+20", "-q"], ["--trust"]),
        ([*first, "steps=110"], named),
        ([*first, "steps=120"], ["--trust"]),
        (["eval", "x", "--episodes", "2"], named),
        (["eval", "x", "--episodes", "2"], ["--trust"]),
        (["config", "diff", "runs/x", "runs/x"], named),
    ):
        elsewhere()
        assert call(*words).code == 2 and "own_part" not in sys.modules
        answer = call(*words, *more)
        assert answer.code == 0, (words, answer.err)
    elsewhere()
    assert call("train", "-c", config, "--dry-run").code == 0, "a file that is typed is the user's"
    assert read_config(config).run.imports == ("own_part",)


def test_a_module_that_moved_is_named_anew(elsewhere, tmp_path):
    call("train", "own", "ludus/Identity-v0", *SMALL, "--run", "x", "--import", "own_part")
    elsewhere()
    (tmp_path / "own_part.py").rename(tmp_path / "moved_part.py")
    lost = call("resume", "x", "steps=+20", "-q", "--trust")
    assert lost.code == 2 and "E109" in lost.err and "--import" in lost.err
    elsewhere()
    assert call("eval", "x", "--episodes", "2", "--import", "moved_part").code == 0
    elsewhere()
    assert call("resume", "x", "steps=+20", "-q", "--import", "moved_part").code == 0
    assert read_config("runs/x/config.yaml").run.imports == ("moved_part",)


def test_a_lone_checkpoint_imports_nothing(elsewhere, tmp_path):
    """It may come from a stranger."""
    call("train", "own", "ludus/Identity-v0", *SMALL, "--run", "x", "--import", "own_part")
    saved = max((tmp_path / "runs" / "x" / "checkpoints").glob("0*"))
    shutil.copytree(saved, tmp_path / "given")
    for place in (saved, tmp_path / "given"):
        elsewhere()
        answer = call("eval", place, "--episodes", "2")
        assert "E111" in answer.err and "own_part" not in sys.modules
        assert call("eval", place, "--episodes", "2", "--import", "own_part").code == 0


def test_imports_of_file_and_command_line_add_up(elsewhere, tmp_path):
    (tmp_path / "moved_part.py").write_text("")
    (tmp_path / "my.yaml").write_text("run: {imports: [own_part]}\n")
    words = ["train", "own", "CartPole-v1", "-c", "my.yaml", "--dry-run", "--json"]
    result = call(*words, "--import", "moved_part").json
    assert result["config"]["run"]["imports"] == ["own_part", "moved_part"]
    assert result["sources"]["run.imports"] == "command line"
    (tmp_path / "my.yaml").write_text("run: {imports: [own_part, 3]}\n")
    assert "E102" in call("train", "dqn", *words[2:]).err
