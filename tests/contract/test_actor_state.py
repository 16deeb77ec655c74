"""Actors with `after_step` and lasting state: the same rows inline and in lockstep processes, and
the same run after SIGKILL and resume."""

from __future__ import annotations

import csv
import os
import signal

import pytest
import torch

import ludus
from ludus import registry
from ludus.run.build import build_loop
from ludus.track.checkpoint.reader import load
from ludus.track.run_dir.rundir import RunDir
from tests.collect.test_after_step import check
from tests.contract.curious import ENTRY, Curious
from tests.contract.same import same_runs
from tests.contract.test_resume import ludus as command

FLEETS = {
    "inline": ("run.fleet=inline", "run.actors=1"),
    "inline, overlap": ("run.fleet=inline", "run.actors=1", "run.overlap=on"),
    "processes": ("run.fleet=processes", "run.actors=2", "actor.lockstep=on"),
}
SHORT = (
    "steps=480", "checkpoint_every=160", "env.num=2", "env.max_episode_steps=7", "run.exact=on",
    "log.tensorboard=false", "log.every=80", "best_window=5",
)  # fmt: skip
IMPORT = ("--import", "tests.contract.register_curious")


def loop_of(tmp_path, monkeypatch, fleet, **more):
    monkeypatch.setattr(registry, "_TABLE", dict(registry._TABLE))
    registry.register(ENTRY)
    settings = {"run.fleet": fleet, "run.actors": 2, "run.exact": "on", "run.steps": 10_000,
                "env.num": 2, "env.max_episode_steps": 1, **more}  # fmt: skip
    cfg = ludus.config("curious", "CartPole-v1", **settings)
    loop, _ = build_loop(cfg, Curious(cfg.algo), RunDir(tmp_path))
    loop.barrier(0)
    return loop


@pytest.mark.parametrize("rows", [1, 4])
def test_processes_in_lockstep_send_the_extras_of_every_row(rows, tmp_path, monkeypatch) -> None:
    """Episodes of one step, chunks of one row and of four: no last row is without its reward."""
    runs = []
    for fleet in ("inline", "processes"):
        loop = loop_of(tmp_path / fleet, monkeypatch, fleet, **{"algo.unroll": rows})
        seen, poll = [], loop.fleet.poll

        def watched(*words, poll=poll, seen=seen):
            got = poll(*words)
            for one in got:
                seen.append(
                    [x.clone() for x in (one.chunk.rows.extras["novelty"], one.chunk.rows.mask)]
                )
                check(one.chunk.rows)
            return got

        loop.fleet.poll = watched
        while loop.learner.updates < 40:
            loop.iterate()
        weights = torch.cat([p.detach().flatten() for p in loop.learner.net.parameters()])
        state = loop.fleet.state()
        loop.close()
        assert all((novelty[mask] == 1e3).all() for novelty, mask in seen)
        runs.append((weights, seen, state))
    (a, one, before), (b, two, after) = runs
    assert torch.equal(a, b) and len(one) == len(two)
    for x, y in zip(one, two, strict=True):
        assert torch.equal(x[1], y[1]) and torch.equal(x[0][x[1]], y[0][y[1]])
    assert before.keys() == after.keys() and before["lasting.counts"].sum() > 40
    assert all((before[k] == after[k]).all() for k in before)


@pytest.mark.parametrize(
    "fleet",
    [
        "inline",
        *(pytest.param(f, marks=pytest.mark.slow) for f in ("inline, overlap", "processes")),
    ],
)
def test_a_bandit_killed_and_resumed_equals_the_uninterrupted_one(fleet, tmp_path) -> None:
    train = ("train", "curious", "CartPole-v1", *SHORT, *FLEETS[fleet], *IMPORT, "--quiet",
             "--runs-dir", str(tmp_path))  # fmt: skip
    assert command(*train, "--run", "whole") == 0
    last = load(tmp_path / "whole").state["updates"]
    kill = ("--callback", "tests.contract.kill:AtUpdate")
    assert command(*train, "--run", "cut", *kill, kill_at=last * 5 // 6) == -signal.SIGKILL
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    left = load(cut)
    assert 0 < left.step < load(whole).step
    assert left.tensors["envs"]["lasting.counts"].sum() > 20
    assert command("resume", str(cut), *IMPORT, "--quiet", hash_seed=2) == 0
    same_runs(whole, cut)
    infos = [
        [row["info"] for row in csv.DictReader((p / "episodes.csv").open())] for p in (whole, cut)
    ]
    assert infos[0] == infos[1] and all('"arm"' in info for info in infos[0])
    counts, begun = load(whole).tensors["envs"]["lasting.counts"], len(infos[0])
    assert counts.sum() == begun, "no episode was forgotten, also not before a checkpoint"


def test_a_replaced_actor_goes_on_from_the_newest_known_counts(tmp_path, monkeypatch) -> None:
    loop = loop_of(tmp_path, monkeypatch, "processes", **{"env.max_episode_steps": 3})
    while loop.learner.updates < 20:
        loop.iterate()
    fleet = loop.fleet
    known = fleet.kept[0]["lasting.counts"].copy()
    assert known.sum() > 10
    os.kill(fleet.members[0].process.pid, signal.SIGKILL)
    for _ in range(3):
        fleet.publish(loop.learner.net, loop.learner.updates)
        loop.iterate()
    assert fleet.restarts.count == 1
    after = fleet.state()["lasting.counts"][:2]
    loop.close()
    assert (after >= known).all() and after.sum() > known.sum()


def test_hogwild_workers_have_their_own_counts(tmp_path, monkeypatch) -> None:
    own = {"run.exact": "off", "run.steps": 300, "run.imports": [IMPORT[1]]}
    loop = loop_of(tmp_path, monkeypatch, "hogwild", **own)
    loop.run()
    loop.barrier(1)
    state = loop.fleet.state()
    loop.close()
    counts = [state[f"{i}/lasting.counts"] for i in range(2)]
    assert all(x.shape == (2, 3) for x in counts)
    assert sum(x.sum() for x in counts) > 100
