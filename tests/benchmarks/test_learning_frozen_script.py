"""The frozen matrix: seeds from a hash, a refusal of changed presets, and its verdicts."""

from __future__ import annotations

import json
import subprocess

import learning_frozen as frozen
import pytest

COMMIT = "00010002000a00ff123456789abcdef012345678"
SEEDS = [1, 2, 10, 255, 0x1234]


def test_seeds_are_the_first_five_groups_of_four_hex_digits():
    assert frozen.seeds_of(COMMIT) == SEEDS
    assert frozen.seeds_of("f" * 40) == [65535] * 5


@pytest.mark.parametrize("short", ["0001000", "HEAD", COMMIT[:39], COMMIT.upper()])
def test_only_a_full_hash_gives_seeds(short):
    with pytest.raises(ValueError, match="40 hex digits"):
        frozen.seeds_of(short)


@pytest.fixture
def typed(tmp_path, monkeypatch):
    """Every command of the script; nothing trains, every evaluation gives 321."""
    commands: list[tuple[str, ...]] = []

    def pretend(*words: str) -> str:
        commands.append(words)
        return json.dumps({"mean": 321.0, "std": 1.0, "step": 190_000})

    monkeypatch.setattr(frozen, "ludus", pretend)
    monkeypatch.setattr(frozen, "RESULTS", tmp_path / "rows.jsonl")
    monkeypatch.setattr(frozen, "full_hash", lambda commit: commit)
    monkeypatch.setattr(frozen, "check_frozen", lambda commit: None)
    return commands


def test_every_seed_is_trained_evaluated_from_last_and_recorded_once(typed, capsys):
    frozen.main(["--commit", COMMIT, "--only", "a2c", "--jobs", "1"])
    rows = frozen.known()
    assert [r["seed"] for r in rows] == SEEDS
    assert {r["commit"] for r in rows} == {COMMIT} and {r["score"] for r in rows} == {321.0}
    train, evaluate = typed[:2]
    assert train[:4] == ("train", "a2c", "CartPole-v1", "seed=1")
    assert evaluate[:6] == ("eval", "it", "--checkpoint", "last", "--episodes", "100")
    count = len(typed)
    frozen.main(["--commit", COMMIT, "--only", "a2c", "--jobs", "1"])
    assert len(typed) == count, "what is there is not run again"
    assert "FAIL  a2c" in capsys.readouterr().out


def scored(name, scores, steps=190_000):
    return [
        {"name": name, "seed": s, "commit": COMMIT, "score": x, "steps": steps}
        for s, x in zip(SEEDS, scores, strict=False)
    ]


def task(name):
    return next(t for t in frozen.MATRIX if t.name == name)


def held(name, scores, **more):
    return frozen.verdict(task(name), scored(name, scores, **more), COMMIT)[0]


def test_a_bar_is_for_the_mean_and_a_floor_for_each_seed():
    assert held("a2c", [500, 500, 475, 475, 450])
    assert not held("a2c", [500, 500, 500, 500, 399]), "below the floor"
    assert not held("a2c", [480, 470, 470, 470, 470]), "below the bar"
    assert not held("a2c", [500] * 4), "a seed is missing"
    assert not held("a2c", [500] * 5, steps=200_001), "too many steps"
    assert held("sac-pendulum", [-150] * 4 + [-380], steps=20_000), "no floor there"
    assert held("ppo-no-lstm", [60] * 5) and not held("ppo-no-lstm", [260] * 5)


def test_a_failed_run_does_not_pass():
    rows = scored("a2c", [500] * 5)
    rows[2] = {k: v for k, v in rows[2].items() if k not in ("score", "steps")} | {"failed": "E"}
    assert not frozen.verdict(task("a2c"), rows, COMMIT)[0]


def test_changed_presets_are_refused(tmp_path, monkeypatch):
    def git(*words):
        return subprocess.run(
            ["git", "-c", "user.name=x", "-c", "user.email=x@x", *words],
            cwd=tmp_path, capture_output=True, text=True, check=True,
        )  # fmt: skip

    monkeypatch.setattr(frozen, "HERE", tmp_path / "benchmarks")
    (tmp_path / "ludus" / "presets").mkdir(parents=True)
    (tmp_path / "ludus" / "algos").mkdir()
    preset = tmp_path / "ludus" / "presets" / "a2c.yaml"
    preset.write_text("lr: 1")
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "frozen")
    commit = frozen.full_hash("HEAD")
    assert len(frozen.seeds_of(commit)) == 5
    (tmp_path / "README.md").write_text("other files may change")
    frozen.check_frozen(commit)
    preset.write_text("lr: 2")
    with pytest.raises(SystemExit, match=r"a2c\.yaml"):
        frozen.check_frozen(commit)
    git("commit", "-qam", "tuned")
    with pytest.raises(SystemExit, match=r"a2c\.yaml"):
        frozen.check_frozen(commit)
    frozen.check_frozen(frozen.full_hash("HEAD"))
    (tmp_path / "ludus" / "algos" / "new.py").write_text("")
    with pytest.raises(SystemExit, match=r"new\.py"):
        frozen.check_frozen(frozen.full_hash("HEAD"))
    with pytest.raises(SystemExit, match="no commit"):
        frozen.full_hash("nothing")
