"""A run on a game from settings to scores: its protocol is stored with every one of them."""

from __future__ import annotations

import csv
import json

import pytest

import ludus
from ludus.cli.main import run as command
from ludus.envs.config import EnvConfig
from ludus.evals import evaluate as evaluating
from ludus.track.metrics.writer import read_metrics

SMALL = {
    "steps": 48, "warmup": 16, "algo.batch": 4, "capacity": 200, "env.num": 2,
    "env.protocol": "dqn-2015", "env.reward_clip": "sign", "env.atari.max_frames": 60,
    "env.atari.noops": 0, "eval.episodes": 1, "log.terminal": "off",
}  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    cfg = ludus.config("dqn", "Pong", **SMALL)
    return ludus.train(cfg, runs_dir=tmp_path_factory.mktemp("runs"), quiet=True)


@pytest.mark.accept(113)
def test_the_protocol_is_written_with_every_result(trained):
    facts = trained.config.env.score_facts
    assert facts["protocol"] == "dqn-2015*" and trained.config.env.id == "ALE/Pong-v5"
    for name in ("manifest.json", "status.json"):
        answer = json.loads((trained.path / name).read_text())
        assert {k: answer[k] for k in facts} == facts, name
    events = read_metrics(trained.path / "events.jsonl")
    (event,) = [e for e in events if e["kind"] == "evaluation"]
    assert {k: event[k] for k in facts} == facts
    with (trained.path / "evals.csv").open() as lines:
        (row,) = csv.DictReader(lines)
    assert {k: row[k] for k in facts} == facts
    result = ludus.evaluate(trained.path, episodes=1)
    (file,) = (trained.path / "eval").glob("*.json")
    answer = json.loads(file.read_text())
    assert {k: answer[k] for k in facts} == facts and result.lengths == [15]


def test_the_protocol_is_said_on_the_command_line(trained, capsys):
    facts = trained.config.env.score_facts
    assert command(["eval", str(trained.path), "--episodes", "1"]) == 0
    said = f"protocol dqn-2015* ({facts['protocol_hash']})"
    assert said in capsys.readouterr().out
    assert command(["ls", "--runs-dir", str(trained.path.parent)]) == 0
    head, line = capsys.readouterr().out.splitlines()
    assert "protocol" in head and "dqn-2015*" in line


def test_evaluation_plays_whole_games(monkeypatch):
    asked = {}

    def stop(cfg, **how):
        asked.update(cfg=cfg, **how)
        raise InterruptedError

    monkeypatch.setattr(evaluating, "make_envs", stop)
    env = EnvConfig(id="breakout", protocol="dqn-2015", atari={"life_loss": "episodic"}, num=64)
    with pytest.raises(InterruptedError):
        evaluating.evaluate_policy(None, None, env, episodes=3, seed=1)
    played = asked["cfg"]
    assert played.atari.life_loss == "ignore" and asked["repair_scores"]
    assert played.num_envs == 3 and played.group_count == 1
    assert played.atari.model_copy(update={"life_loss": "episodic"}) == env.atari
