"""Settings that do not go together: warned of, never silently ignored, and the run goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest
import torch

from ludus import registry
from ludus.cli.main import run as command
from ludus.envs.make import probe_spec
from ludus.errors import RUN_FAILED, LudusError
from ludus.fleets.actor_core import device_of_actor
from ludus.learn.placement import check_devices
from ludus.run import compatibility
from ludus.run.build import exact
from ludus.run.compatibility import (
    conflicting_settings,
    cuts_episodes,
    fitted,
    learns_no_more,
    shortened,
)
from ludus.settings.sections import FLEETS, RunConfig
from ludus.track.metrics.writer import read_metrics
from tests.contract.tiny import NAMES, run, tiny

FREE = ("fleet=processes", "actors=2")
LOCKSTEP = (*FREE, "actor.lockstep=on")
HOGWILD = ("fleet=hogwild", "actors=2")


def warned(name, *settings):
    cfg = tiny(name, "CartPole-v1", *settings)
    return conflicting_settings(cfg, registry.make(cfg.algo), probe_spec(cfg.env))


@pytest.mark.accept(72)
@pytest.mark.parametrize("name", NAMES)
def test_ordinary_settings_are_not_warned_of(name) -> None:
    assert warned(name) == []
    assert warned(name, *LOCKSTEP) == []


def test_old_atari_ids_come_without_what_games_are_learned_with() -> None:
    cfg = tiny("dqn", "Pong-v4")
    [said] = conflicting_settings(cfg, registry.make(cfg.algo), probe_spec(cfg.env))
    assert said.startswith("env.id=Pong-v4 is gymnasium's own") and "(210, 160, 3)" in said
    assert said.endswith("env.id=ALE/Pong-v5 has them")


@pytest.mark.parametrize("name", ["a3c", "async-q", "async-sarsa", "async-nstep-q"])
def test_hogwild_is_what_these_are_made_for(name) -> None:
    assert warned(name, *HOGWILD) == []


def test_far_more_processes_than_cores_are_warned_of(monkeypatch) -> None:
    monkeypatch.setattr(compatibility, "available_cores", lambda: 2)
    assert warned("impala", "fleet=processes", "actors=8") == []
    assert warned("impala", "actors=48") == [], "one process has them all"
    [said] = warned("impala", "fleet=processes", "actors=48")
    assert said == "run.actors=48: as many processes share 2 cores and take about 7.68 GB"
    [said] = warned("a3c", "fleet=hogwild", "actors=100")
    assert said == "run.actors=100: as many processes share 2 cores and take about 3 GB"


def test_a_dry_run_counts_environments_and_the_memory_of_processes(capsys) -> None:
    words = ["train", "impala", "CartPole-v1", "fleet=processes", "actors=500", "env.num=4"]
    assert command([*words, "--dry-run"]) == 0
    assert "500 x 4 = 2000 environments, in separate processes: about 80 GB" in (
        capsys.readouterr().out
    )


@pytest.mark.accept(72)
@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("dqn", ("actor.buffers=2",), "actor.buffers=2 has no effect with run.fleet=inline"),
        ("dqn", ("actor.lockstep=off",), "actor.lockstep=off has no effect"),
        ("dqn", ("actor.hang_seconds=9",), "actor.hang_seconds=9.0 has no effect"),
        ("dqn", ("run.shared_statistics=false",), "run.shared_statistics=false has no effect"),
        ("dqn", ("eval.device=cpu",), "eval.device=cpu has no effect without eval.live"),
        ("dqn", (*LOCKSTEP, "actor.overflow=latest"), "actor.overflow=latest has no effect"),
        ("dqn", ("fleet=ray", "actor.overflow=latest"), "actor.overflow=latest has no effect"),
        ("dqn", (*FREE, "ray.actor_cpus=2"), "ray.actor_cpus=2.0 has no effect with run.fleet"),
        ("dqn", (*LOCKSTEP, "actor.publish_every=5"), "actor.publish_every=5 has no effect"),
        ("dqn", (*LOCKSTEP, "actor.pull_every=5"), "actor.pull_every=5 has no effect"),
        ("dqn", (*LOCKSTEP, "actor.rows=99"), "actor.rows=99: one process has chunks of"),
        ("dqn", (*FREE, "run.exact=on", "actor.lockstep=off"), "run.exact=on is ignored"),
        ("ppo", FREE, "ppo learns from rows up to 4 chunks old as if they were fresh"),
        ("a3c", (*FREE, "actor.buffers=1"), "a3c learns from rows up to 2 chunks old"),
        ("async-q", FREE, "async-q learns from rows up to 4 chunks old"),
        ("impala", (*FREE, "recurrent={hidden: 8}", "actor.rows=4"), "actor.rows=4 becomes 5"),
        ("ppo", HOGWILD, "ppo with run.fleet=hogwild: only a3c and async-* are made for"),
        ("impala", HOGWILD, "impala with run.fleet=hogwild: only a3c and async-* are made for"),
        ("a3c", (*HOGWILD, "actor.rows=9"), "actor.rows=9 has no effect with run.fleet=hogwild"),
        ("a3c", (*HOGWILD, "run.capture=on"), "run.capture=on is ignored"),
        ("a3c", (*HOGWILD, "run.overlap=on"), "run.overlap=on is ignored"),
        ("a3c", (*HOGWILD, "run.compile=true"), "run.compile=true is ignored"),
        ("a3c", (*HOGWILD, "run.device=cuda"), "run.device=cuda is ignored"),
        ("a3c", (*HOGWILD, "run.exact=on"), "run.exact=on is ignored"),
        ("a3c", (*HOGWILD, "env.workers=1"), "env.workers=1 becomes 0"),
    ],
)
def test_every_conflicting_combination_is_one_warning(name, settings, said) -> None:
    (line,) = warned(name, *settings)
    assert said in line


@pytest.mark.accept(72)
def test_what_has_an_effect_is_not_warned_of() -> None:
    assert warned("dqn", "actor.hang_seconds=9", "eval.live=true", "eval.device=cpu") == []
    assert warned("dqn", *FREE, "actor.overflow=latest", "actor.publish_every=5") == []
    assert warned("impala", *FREE, "actor.rows=3") == []
    assert warned("dqn", "fleet=ray", "ray.actor_cpus=2", "actor.buffers=1") == []
    assert warned("dqn", "fleet=ray", "actors=900", "ray.address=a:1") == []
    assert warned("impala", *FREE, "recurrent={hidden: 8}", "actor.rows=1") == []
    assert warned("a3c", *HOGWILD, "run.shared_statistics=false") == []
    health = ("actor.hang_seconds=9", "actor.restarts=3", "actor.restart_minutes=2")
    assert warned("a3c", *HOGWILD, *health) == []
    assert warned("a3c", "fleet=hogwild", "run.exact=on") == [], "one worker is exact"


@pytest.mark.accept(72)
def test_conflicting_hogwild_settings_run_all_the_same(tmp_path) -> None:
    odd = ("run.capture=on", "run.overlap=on", "run.compile=true", "run.device=cuda",
           "run.exact=on", "env.workers=1", "actor.rows=9")  # fmt: skip
    cfg = tiny("a3c", "CartPole-v1", *HOGWILD, *odd, "steps=400")
    assert not exact(cfg) and fitted(cfg).run.device == "cpu"
    result = run(cfg, tmp_path)
    assert result.reason == "finished" and result.updates > 0
    events = read_metrics(result.path / "events.jsonl")
    answer = [e["what"] for e in events if e["kind"] == "warning"]
    assert len(answer) == len(odd)
    log = (result.path / "log.txt").read_text()
    assert all(f"warning: {text}" in log for text in answer)


@pytest.mark.accept(72)
def test_rows_that_would_split_the_memory_of_a_policy(tmp_path) -> None:
    """Once a raw ValueError in the middle of a run."""
    words = (*FREE, "recurrent={hidden: 8}", "unroll=8", "actor.rows=6", "steps=600")
    result = run(tiny("impala", "CartPole-v1", *words), tmp_path)
    assert result.updates > 0
    assert "actor.rows=6 becomes 8" in (result.path / "log.txt").read_text()


@pytest.mark.accept(72)
def test_a_dry_run_says_it_too(capsys) -> None:
    words = ["train", "ppo", "CartPole-v1", *FREE, "--dry-run"]
    assert command(words) == 0
    assert "warning      ppo learns from rows" in capsys.readouterr().out
    assert command([*words, "--json"]) == 0
    assert "ppo learns" in json.loads(capsys.readouterr().out)["warnings"][0]


@pytest.mark.accept(81)
@pytest.mark.parametrize(
    ("key", "more"),
    [("run.device", ()), ("actor.device", FREE), ("eval.device", ("eval.live=true",))],
)
def test_a_gpu_that_is_not_there_is_refused_before_anything_starts(
    key, more, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    cfg = tiny("dqn", "CartPole-v1", f"{key}=cuda", *more)
    with pytest.raises(LudusError) as caught:
        run(cfg, tmp_path)
    assert caught.value.code == "E104" and f"{key}=cuda" in caught.value.what
    assert f"{key}=cpu" in caught.value.fix
    words = ["train", "dqn", "CartPole-v1", f"{key}=cuda", *more, "--dry-run"]
    assert command(words) == 2
    check_devices(tiny("dqn", "CartPole-v1", *more))  # nothing asked for: no flag is needed


@pytest.mark.accept(81)
@pytest.mark.parametrize("key", ["run.device", "actor.device", "eval.device"])
def test_each_role_may_have_a_gpu_of_its_own(key, monkeypatch) -> None:
    """Where torch sees two, there is no third."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for device in ("cuda", "cuda:0", "cuda:1"):
        cfg = tiny("dqn", "CartPole-v1", *FREE, "eval.live=true", f"{key}={device}")
        section, _, name = key.partition(".")
        assert getattr(getattr(cfg, section), name) == device
        check_devices(cfg)
    with pytest.raises(LudusError) as caught:
        check_devices(tiny("dqn", "CartPole-v1", *FREE, "eval.live=true", f"{key}=cuda:2"))
    assert caught.value.code == "E104"
    assert caught.value.what == f"{key}=cuda:2, but torch sees only cuda:0, cuda:1"
    assert f"{key}=cuda:1" in caught.value.fix
    with pytest.raises(LudusError, match="'cuda:1'") as unknown:
        tiny("dqn", "CartPole-v1", f"{key}=cuda:-1")
    assert unknown.value.code == "E103"


@pytest.mark.accept(80)
def test_actors_are_spread_over_all_gpus_or_kept_on_the_cpu(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert [device_of_actor("cuda", i) for i in range(5)] == [
        "cuda:0", "cuda:1", "cuda:2", "cuda:0", "cuda:1",
    ]  # fmt: skip
    assert {device_of_actor("cpu", i) for i in range(5)} == {"cpu"}


def test_a_run_shorter_than_its_warm_up_says_that_it_learns_nothing(tmp_path, capsys) -> None:
    assert warned("dqn", "warmup=300", "steps=300") == []
    [said] = warned("dqn", "warmup=3k", "steps=300")
    assert said == (
        "algo.warmup=3k is more than run.steps=300: the run would end with 0 updates; "
        "set algo.warmup=100 or steps=9k"
    )
    words = ["train", "dqn", "ludus/Identity-v0", "steps=60", "warmup=1k", "tensorboard=off"]
    assert command([*words, "--dry-run"]) == 0
    assert "algo.warmup=1k is more than run.steps=60" in capsys.readouterr().out
    assert command([*words, "-q", "--runs-dir", str(tmp_path), "--run", "x"]) == RUN_FAILED
    answer = capsys.readouterr()
    assert "warning: algo.warmup=1k is more than run.steps=60: the run would end" in answer.out
    assert "warning: 0 updates: nothing was learned in 6" in answer.out
    said = "learning begins at algo.warmup=1k: algo.warmup=20 or steps=3k"
    assert said in answer.out
    assert "0 updates: nothing was learned" in answer.err and "ludus eval" not in answer.out
    for words in (["ls"], ["status", "x"]):
        assert command([*words, "--runs-dir", str(tmp_path)]) == 0
        assert "finished, 0 updates" in capsys.readouterr().out
    assert command(["resume", str(tmp_path / "x"), "steps=1100", "-q"]) == 0
    answer = capsys.readouterr()
    assert "algo.warmup" not in answer.out and "0 updates" not in answer.err


def test_a_learning_rate_of_zero_is_said(tmp_path, capsys) -> None:
    """Schedules keep the span they were planned for, so a longer run may learn nothing more."""
    words = ["steps=64", "env.num=2", "rollout=8", "minibatches=1", "tensorboard=off", "report=off"]
    train = ["train", "ppo", "CartPole-v1", "lr=1e-3->0", *words, "-q", "--preset", "none"]
    assert command([*train, "--runs-dir", str(tmp_path), "--run", "x"]) == 0
    answer = capsys.readouterr().out
    assert "lr is 0" not in answer and "ludus eval" in answer and "steps=+" not in answer
    assert command(["resume", str(tmp_path / "x"), "-q"]) == 0
    answer = capsys.readouterr().out
    assert "already at step" in answer and "steps=+" not in answer and "--init-from" in answer
    assert command(["resume", str(tmp_path / "x"), "steps=+32", "-q"]) == 0
    answer = capsys.readouterr().out
    assert "warning: lr is 0 from here on: nothing will be learned" in answer
    assert f"--init-from {tmp_path / 'x'}" in answer and "steps=+" not in answer


def test_a_learning_rate_that_ends_before_the_run_does() -> None:
    cfg = tiny("ppo", "CartPole-v1", "lr=1e-3->0@50%", "steps=1k")
    plan = registry.make(cfg.algo).plan
    assert "from step 500 on" in learns_no_more(cfg, plan, 100, Path("x"))
    assert "from here on" in learns_no_more(cfg, plan, 500, Path("x"))
    for words in ("lr=1e-3->0",), ("lr=1e-3",), ("lr=1e-3->1e-5@50%",):
        cfg = tiny("ppo", "CartPole-v1", *words, "steps=1k")
        assert learns_no_more(cfg, registry.make(cfg.algo).plan, 100, Path("x")) == ""


@pytest.mark.parametrize(
    ("settings", "share", "way"),
    [
        (("steps=500k", "checkpoint_every=800"), "100%", "checkpoint_every=80k cuts up to 5%"),
        (("steps=500k", "checkpoint_every=20k"), "20%", "checkpoint_every=80k cuts up to 5%"),
        (("steps=10k", "checkpoint_every=800"), "100%", "without it there is one at the end"),
    ],
)
def test_an_interval_that_cuts_many_episodes_is_warned_of(settings, share, way) -> None:
    said = cut("env.num=8", *settings)
    assert f"cuts up to {share} of the episodes" in said and way in said
    assert "run.exact=off cuts none" in said


def test_an_interval_that_cuts_few_episodes_is_not_warned_of() -> None:
    assert cut("env.num=8", "steps=500k") == ""
    assert cut("env.num=8", "steps=500k", "checkpoint_every=80k") == ""
    assert cut("env.num=8", "steps=10k", "checkpoint_every=10k") == "", "only the end"


def cut(*settings) -> str:
    cfg = tiny("dqn", "CartPole-v1", *settings)
    return cuts_episodes(cfg, probe_spec(cfg.env), cfg.run.checkpoint_steps, cfg.env.num_envs)


def test_the_warning_reaches_a_dry_run_and_a_run(tmp_path, capsys) -> None:
    words = ["train", "dqn", "CartPole-v1", "steps=1200", "warmup=100", "checkpoint_every=400"]
    words += ["--preset", "none", "tensorboard=off"]
    for more in (["--dry-run"], ["-q", "--runs-dir", str(tmp_path), "--run", "x"]):
        assert command([*words, *more]) == 0
        assert "run.checkpoint_every=400 cuts up to 100% of the episodes" in capsys.readouterr().out


def ppo(*settings):
    cfg = tiny("ppo", "CartPole-v1", "env.num=16", "rollout=512", "minibatches=32", *settings)
    return cfg, registry.make(cfg.algo)


def test_rollouts_that_are_longer_than_the_run_are_shortened(tmp_path) -> None:
    """As steps=2k on LunarLander, which ran 8,110."""
    cfg, algorithm = ppo("steps=2k", "epochs=1")
    shorter, said = shortened(cfg, algorithm)
    assert shorter.plan.view.length == shorter.plan.chunk == 12
    assert algorithm.plan.view.length == 512, "the algorithm that was given is left alone"
    assert "16 environments x 512 rows = 8.192k steps" in said and "rollouts of 12 rows" in said
    done = run(cfg, tmp_path)
    assert 2000 <= done.step <= 2200 and done.updates >= 10 * 32
    assert said in (done.path / "log.txt").read_text()


@pytest.mark.parametrize(("steps", "rows"), [("8192", 51), ("8200", 51), ("70k", 437)])
def test_rollouts_that_could_end_the_run_late_are_shortened(steps, rows) -> None:
    """The rows of resets are no steps, so even as many steps as an iteration has rows take two."""
    cfg, algorithm = ppo(f"steps={steps}")
    shorter, said = shortened(cfg, algorithm)
    assert shorter.plan.view.length == shorter.plan.chunk == rows
    assert f"rollouts of {rows} rows" in said
    assert conflicting_settings(cfg, shorter, probe_spec(cfg.env)) == []


@pytest.mark.parametrize("steps", [8192, 8200])
def test_a_run_with_shorter_rollouts_ends_near_its_steps(steps, tmp_path) -> None:
    cfg, _ = ppo(f"steps={steps}", "epochs=1")
    done = run(cfg, tmp_path)
    assert steps <= done.step <= 1.1 * steps


def test_short_rollouts_are_left_alone() -> None:
    """A run that ends less than a thousand steps late keeps nobody waiting."""
    cfg, algorithm = ppo("steps=1000", "rollout=62")
    assert shortened(cfg, algorithm) == (algorithm, "")


@pytest.mark.parametrize("steps", ["81920", "490k"])
def test_rollouts_that_fit_are_left_alone(steps) -> None:
    cfg, algorithm = ppo(f"steps={steps}")
    assert shortened(cfg, algorithm) == (algorithm, "")
    assert conflicting_settings(cfg, algorithm, probe_spec(cfg.env)) == []


def test_a_run_that_goes_on_keeps_its_rollouts() -> None:
    cfg, algorithm = ppo("steps=300k", "horizon=2k")
    assert shortened(cfg, algorithm)[0].plan.view.length == 12


def test_chunks_that_are_longer_than_the_run_are_shortened(tmp_path) -> None:
    """One update in 6,400 steps, and a run of 2,000: it took 12,260."""
    words = ("steps=2k", "env.num=2", "batch=64", "replay_ratio=0.01", "warmup=100")
    cfg = tiny("dqn", "CartPole-v1", *words)
    algorithm = registry.make(cfg.algo)
    shorter, said = shortened(cfg, algorithm)
    assert shorter.plan.chunk == 100 and "one update per 6.4k steps" in said
    done = run(cfg, tmp_path)
    assert 2000 <= done.step <= 2200 and said in (done.path / "log.txt").read_text()
    often = tiny("dqn", "CartPole-v1", *words, "replay_ratio=1")
    algorithm = registry.make(often.algo)
    assert shortened(often, algorithm) == (algorithm, "")


def test_an_end_far_beyond_the_steps_is_warned_of() -> None:
    """A schedule for a longer run keeps its rollouts."""
    cfg, algorithm = ppo("steps=10k", "horizon=490k")
    assert shortened(cfg, algorithm) == (algorithm, "")
    [said] = conflicting_settings(cfg, algorithm, probe_spec(cfg.env))
    assert said == (
        "run.steps=10k: ppo learns every 8.192k steps, so the run may end near 16.38k; "
        "a lower env.num= ends nearer"
    )


def test_every_fleet_of_the_settings_has_capabilities() -> None:
    assert get_args(RunConfig.model_fields["fleet"].annotation) == tuple(FLEETS)
    assert not FLEETS["inline"].own_processes and FLEETS["processes"].sends_chunks
    learning = [name for name, can in FLEETS.items() if can.actors_learn]
    assert learning == ["hogwild"]
