"""The agents that come with the package: small, of no particular machine, and as good as said."""

from __future__ import annotations

import json
import re

import pytest

import ludus
from ludus.agents import agent_file, agent_names
from ludus.errors import LudusError
from ludus.track.metrics.writer import read_metrics
from tests.cli.conftest import call

# The least mean of 20 games, below what a good agent has by some deviations of such a mean.
BARS = {"cartpole-ppo": 475, "lunarlander-dqn": 200, "pendulum-ppo": -250}
FILES = {
    "config.user.yaml", "config.yaml", "episodes.csv", "evals.csv", "manifest.json",
    "metrics.jsonl", "model.safetensors",
}  # fmt: skip


def test_there_are_three_and_they_are_listed():
    assert agent_names() == sorted(BARS)
    rows = {row["name"]: row for row in call("list", "agents", "--json").json}
    assert set(rows) == {f"agent:{name}" for name in BARS}
    for name, bar in BARS.items():
        row = rows[f"agent:{name}"]
        assert row["score"] >= bar and row["episodes"] == 30 and row["steps"] >= 100_000
        assert name == f"{row['env'].split('-')[0].lower()}-{row['algo']}"


@pytest.mark.parametrize("name", BARS)
def test_each_plays_as_well_as_said(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    agent = f"agent:{name}"
    result = call("eval", agent, "--episodes", "20", "--no-video", "--json").json
    assert result["mean"] >= BARS[name] and len(result["scores"]) == 20
    assert result["file"] is None, "nothing is written into the package"
    kept = call("eval", agent, "--episodes", "1", "--no-video", "--json", "--out", "here").json
    assert (tmp_path / "here" / f"greedy-{kept['step']}.json").is_file()


def test_one_command_plays_or_records_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    shown = call("play", "agent:cartpole-ppo", "--episodes", "1", "--speed", "1000")
    assert shown.out.splitlines() == ["episode 1: score 500, 500 steps, truncated"]
    (film,) = call("record", "agent:pendulum-ppo", "--minutes", "0.02", "--json").json
    assert (tmp_path / film["path"]).is_relative_to(tmp_path / "videos")
    assert (tmp_path / film["path"]).stat().st_size > 1000


def test_from_python():
    agent = ludus.load("agent:cartpole-ppo")
    obs, _ = agent.make_env().reset(seed=0)
    assert agent.act(obs) in (0, 1) and agent.step == 100_012


@pytest.mark.parametrize("name", BARS)
def test_its_logs_are_those_of_its_run_and_name_no_machine(name):
    folder = agent_file(name).parent
    assert {file.name for file in folder.iterdir()} == FILES
    last = read_metrics(folder / "metrics.jsonl")[-1]
    step = ludus.load(f"agent:{name}").step
    assert last["step"] == step == int((folder / "evals.csv").read_text().split("\n")[1][:6])
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["command"][:2] == ["ludus", "train"] and manifest["run"] == name
    for file in FILES - {"model.safetensors"}:
        text = (folder / file).read_text(encoding="utf-8")
        assert not re.search(r"(^|[\s\"'=])/\w|host|\bpid\b|--runs-dir", text), file


def test_together_they_are_small():
    files = [f for name in BARS for f in agent_file(name).parent.iterdir()]
    assert sum(file.stat().st_size for file in files) < 2_000_000


def test_an_unknown_one_is_refused_with_the_nearest():
    with pytest.raises(LudusError, match="cartpole-ppo") as caught:
        ludus.load("agent:cartpole-pp")
    assert caught.value.code == "E303"
    answer = call("play", "agent:../cartpole-ppo")
    assert answer.code != 0 and "E303" in call("eval", "agent:../x").err
