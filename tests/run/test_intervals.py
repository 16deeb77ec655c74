"""Checkpoints leave room for whole episodes; progress reaches log.txt; lost callbacks are named."""

from __future__ import annotations

import re

import torch

from ludus import registry
from ludus.envs.make import probe_spec
from ludus.run.build import checkpoint_interval
from ludus.run.session import train_run
from ludus.track.callbacks import Callback
from tests.contract.tiny import run, tiny


def interval(*settings: str, barriers: bool = True) -> int:
    cfg = tiny("dqn", "CartPole-v1", *settings)
    return checkpoint_interval(cfg, probe_spec(cfg.env), cfg.env.num_envs, barriers)


def test_a_barrier_leaves_room_for_five_episodes_a_slot() -> None:
    assert interval("steps=50k", "env.num=8") == 5 * 8 * 500
    assert interval("steps=2M", "env.num=8") == 200_000  # a tenth is more
    assert interval("steps=10k", "env.num=8") == 10_000  # only at the end


def test_without_barriers_or_when_typed_the_interval_is_unchanged() -> None:
    assert interval("steps=50k", "env.num=8", barriers=False) == 5_000
    assert interval("steps=50k", "env.num=8", "run.checkpoint_every=2k") == 2_000


def test_a_short_run_is_scored_by_whole_episodes(tmp_path) -> None:
    result = run(tiny("dqn", "CartPole-v1", "steps=1500", "env.num=4"), tmp_path)
    ends = [line.split(",")[4] for line in (result.path / "episodes.csv").read_text().splitlines()]
    assert ends.count("checkpoint") <= 4, "cut only at the end"


def test_progress_reaches_the_log(tmp_path) -> None:
    cfg = tiny("dqn", "CartPole-v1", "steps=1500", "log.seconds=0.1")
    text = (run(cfg, tmp_path).path / "log.txt").read_text()
    assert re.search(r"actor +[\d.]+k? / 1\.5k steps", text)
    assert re.search(r"learner +[\d.]+k? updates", text)


class Mine(Callback):
    def state(self) -> dict[str, int]:
        return {"n": 1}


def test_a_resume_without_its_callback_says_so(tmp_path) -> None:
    cfg = tiny("dqn", "CartPole-v1", "steps=400")
    path = run(cfg, tmp_path, callbacks=[Mine()]).path
    more = cfg.model_copy(update={"run": cfg.run.model_copy(update={"steps": 500})})
    train_run(more, registry.make(cfg.algo), path=path, resume=True, quiet=True)
    assert "callback Mine is not there any more" in (path / "log.txt").read_text()
    assert torch.get_num_threads() == 1
