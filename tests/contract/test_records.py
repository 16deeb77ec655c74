"""What a run leaves in its files and shows on the way: every episode once, one row per interval,
also when it was killed in between; lines of actor and learner; seeds."""

from __future__ import annotations

import csv
import json
import re
import signal
from pathlib import Path

import numpy as np
import pytest

import ludus
from ludus import seeding
from ludus.cli.main import run as command
from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs
from ludus.settings.resolve import load_config
from ludus.track.callbacks import Callback
from ludus.track.checkpoint.reader import load
from ludus.track.metrics.writer import read_metrics
from tests.contract.test_resume import ludus as process
from tests.contract.tiny import overrides, run, tiny

# Episodes of 40 steps, reward t: length and score of a row vouch for each other. Longer than a
# rollout of 16, so that no slot ends two of them in one chunk.
ENV = "ludus/Counter-v0"
SETTINGS = (
    "steps=600", "env.args={length: 40}", "log.every=100", "checkpoint_every=200",
    "eval.every=150", "eval.episodes=2",
)  # fmt: skip


def table(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def check_records(path: Path, steps: int, chunk: int) -> None:
    """Every step of every slot is in one episode of episodes.csv; every interval has one row."""
    episodes = table(path / "episodes.csv")
    assert sum(int(e["length"]) for e in episodes) == steps, "each step in exactly one episode"
    assert {e["slot"] for e in episodes} == {"0", "1"}
    assert {e["end"] for e in episodes} == {"terminated", "checkpoint"}
    for e in episodes:
        length = int(e["length"])
        assert float(e["score"]) == length * (length + 1) / 2
        assert length == 40 if e["end"] == "terminated" else 0 < length < 40
    # Rows of one chunk share its step, so a slot may end an episode and have the next one cut.
    once = [(e["slot"], e["step"], e["end"] if chunk > 1 else "") for e in episodes]
    assert len(set(once)) == len(once)
    at = [int(e["step"]) for e in episodes]
    assert at == sorted(at) and at[-1] <= steps

    lines = [row["step"] for row in read_metrics(path / "metrics.jsonl")]
    assert [step // 100 for step in lines] == list(range(1, steps // 100 + 1))
    evals = [int(row["step"]) // 150 for row in table(path / "evals.csv")]
    assert evals == list(range(1, steps // 150 + 1)), "the one at the very end is not a second one"
    assert all(row["episodes"] == "2" for row in table(path / "evals.csv"))


class Ends(Callback):
    """All the ends a run told of."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str]] = []

    def on_episode(self, run, episode):
        self.seen.append((str(episode.env), str(episode.length), episode.end))


@pytest.mark.accept(131)
@pytest.mark.parametrize(("name", "chunk"), [("dqn", 1), ("ppo", 16)])
def test_every_episode_once_and_one_row_per_interval(name, chunk, tmp_path) -> None:
    ends = Ends()
    result = run(tiny(name, ENV, *SETTINGS), tmp_path, callbacks=[ends])
    check_records(result.path, result.step, chunk)
    rows = table(result.path / "episodes.csv")
    assert [(e["slot"], e["length"], e["end"]) for e in rows] == ends.seen


@pytest.mark.accept(131)
@pytest.mark.parametrize(("name", "chunk"), [("dqn", 1), ("ppo", 16)])
def test_also_after_a_kill_and_a_resume(name, chunk, tmp_path) -> None:
    """The rows written after the last checkpoint are made again, not kept beside the new ones."""
    kill = {"dqn": 120, "ppo": 55}[name]  # updates; between the second checkpoint and the third
    words = ("log.tensorboard=false", "env.num=2", *overrides(name), *SETTINGS)
    code = process(
        "train", name, ENV, *words, "--preset", "none", "--quiet", "--runs-dir", str(tmp_path),
        "--run", "cut", "--callback", "tests.contract.kill:AtUpdate", kill_at=kill,
    )  # fmt: skip
    cut = tmp_path / "cut"
    assert code == -signal.SIGKILL
    saved = load(cut)
    assert 400 <= saved.step < 500 and saved.state["updates"] < kill
    # Lines reach the disk about once a second, so put some there that the checkpoint knows not of.
    with open(cut / "episodes.csv", "a", encoding="utf-8") as file:
        file.write(f"{saved.step + 30},0,820.0,40,terminated,1.0,\n{saved.step + 31},1,3.0,2,ch")
    with open(cut / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps({"step": saved.step + 100, "updates": kill}) + "\n")
    again = ludus.resume(cut, quiet=True)
    assert again.reason == "finished" and again.step >= 600
    check_records(cut, again.step, chunk)
    assert [s["step"] for s in json.loads((cut / "manifest.json").read_text())["sessions"]] == [
        0,
        saved.step,
    ]


STAMPED = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (actor|learner)  +(\d+) (.*)$")


@pytest.mark.accept(128)
def test_a_command_shows_actor_and_learner_at_work(tmp_path, capsys) -> None:
    words = ("log.terminal=plain", "log.seconds=0.2", "log.tensorboard=false", "steps=300")
    slow = ("env.args={seconds: 0.004}", "env.num=2", *overrides("dqn"))
    where = ("--preset", "none", "--runs-dir", str(tmp_path), "--run", "seen")
    assert command(["train", "dqn", "ludus/Slow-v0", *words, *slow, *where]) == 0
    shown = [m.groups() for m in map(STAMPED.match, capsys.readouterr().out.splitlines()) if m]
    assert len(shown) >= 6, "a pair of lines every 0.2 s of a run of more than a second"
    assert [who for who, _, _ in shown] == ["actor", "learner"] * (len(shown) // 2)
    steps = [int(number) for who, number, _ in shown if who == "actor"]
    updates = [int(number) for who, number, _ in shown if who == "learner"]
    assert steps == sorted(steps) and 0 < steps[0] < 300 <= steps[-1]
    assert updates == sorted(updates) and updates[0] < updates[-1]
    assert updates[-1] == load(tmp_path / "seen").state["updates"]
    _, _, acting = shown[-2]
    _, _, learning = shown[-1]
    assert all(word in acting for word in ("steps/s", "episodes", "train("))
    assert all(word in learning for word in ("updates/s", "loss", "epsilon", "bottleneck"))
    log = (tmp_path / "seen" / "log.txt").read_text(encoding="utf-8")
    assert "actor  " in log and "learner  " in log


class Seeds(Callback):
    """The seeds the slots of a run were really reset with."""

    def __init__(self) -> None:
        self.slots: list[int] = []

    def on_start(self, run):
        self.slots = list(run.loop.fleet.collector.envs.seeds)


@pytest.mark.accept(125)
def test_seeds_of_a_run_come_from_the_one_it_records(tmp_path) -> None:
    used = {}
    for run_name, seed in (("one", 11), ("again", 11), ("other", 12)):
        seeds = Seeds()
        cfg = tiny("dqn", ENV, "steps=100", "env.num=4", f"seed={seed}")
        path = run(cfg, tmp_path / run_name, callbacks=[seeds]).path
        recorded = json.loads((path / "manifest.json").read_text())["seed"]
        assert recorded == load_config(path / "config.yaml").run.seed == seed
        assert seeds.slots == [seeding.env_seed(recorded, "env", slot) for slot in range(4)]
        used[run_name] = seeds.slots
    assert used["one"] == used["again"]
    assert len({*used["one"], *used["other"]}) == 8, "no two slots share one, in neither run"


@pytest.mark.accept(125)
def test_seeds_differ_between_slots_processes_roles_and_barriers() -> None:
    cfg = EnvConfig(id=ENV, num=4, workers=2)
    tags = []
    with make_envs(cfg, seed=3) as envs:
        for barrier in range(2):
            envs.reset(barrier)
            obs = envs.observe().obs
            assert isinstance(obs, np.ndarray)
            tags += obs[:, 1].tolist()  # drawn by each environment at its reset
    assert len(set(tags)) == 8, "slots of two worker processes, before and after a barrier"
    with make_envs(cfg.model_copy(update={"workers": 0}), seed=3) as envs:
        envs.reset(0)
        assert envs.observe().obs[:, 1].tolist() == tags[:4], "wherever a slot lives"
    streams = {
        seeding.stream_seed(seed, role, index, barrier)
        for seed in (3, 4)
        for role in ("env", "act", "learn", "eval")
        for index in range(4)
        for barrier in range(3)
    }
    assert len(streams) == 2 * 4 * 4 * 3


class Stumble(Callback):
    def on_episode(self, run, episode):
        if run.step > 120:
            raise RuntimeError("a stone")


@pytest.mark.accept(131)
def test_a_run_that_failed_before_its_first_checkpoint_begins_again_with_empty_files(tmp_path):
    words = ("dqn", ENV)
    settings = {"steps": 300, "env.args": {"length": 40}, "log.every": 50, "checkpoint_every": 290}
    cfg = ludus.config(*words, **settings, batch=8, warmup=40)
    with pytest.raises(ludus.LudusError, match="a stone"):
        ludus.train(cfg, runs_dir=tmp_path, run="x", quiet=True, callbacks=[Stumble()])
    assert table(tmp_path / "x" / "episodes.csv"), "it left some lines"
    for name in ("x", "y"):
        ludus.train(cfg, runs_dir=tmp_path, run=name, quiet=True)

    def episodes(name):
        rows = table(tmp_path / name / "episodes.csv")
        return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]

    def metrics(name):
        return [line["step"] for line in read_metrics(tmp_path / name / "metrics.jsonl")]

    assert episodes("x") == episodes("y") and metrics("x") == metrics("y")
