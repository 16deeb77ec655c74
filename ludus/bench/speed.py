"""How fast a configuration runs here, and how much of the emulators' own speed is left.

Emulators alone, acting, learning and whole training are measured in one process, one after the
other, with the same environments: only their ratios mean anything on another day.
"""

from __future__ import annotations

import gc
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ludus import registry
from ludus.bench.ceilings import ceiling, silent
from ludus.bench.filling import fill, held
from ludus.compute.gpu_memory import explain_out_of_memory
from ludus.contract import Fifo, NStep, Sequence
from ludus.envs.adapter import Envs
from ludus.envs.make import make_envs
from ludus.errors import LudusError
from ludus.learn.captured import CapturedReplay, CapturedUnrolls
from ludus.learn.eager import Updates
from ludus.process.limits import available_cores
from ludus.replay.replay_store import ReplayStore
from ludus.run.build import build_loop
from ludus.run.loop import Loop
from ludus.run.recording.recorder import Recorder
from ludus.settings.resolve import Config
from ludus.track.run_dir.rundir import RunDir
from ludus.units import show_count

LESS = "run.replay_on=host , which keeps rows in host memory; a smaller algo.capacity or algo.batch"


def _sync() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def acting(loop: Loop, seconds: float) -> float:
    """Steps/s of collecting without learning."""
    values = loop.values.at(10**9)
    loop.fleet.publish(loop.learner.net)
    loop.fleet.poll(values)  # captures
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        for got in loop.fleet.poll(values):
            done += int(got.chunk.rows.mask.sum())
    _sync()
    return done / (time.perf_counter() - start)


def _working(updates: Updates) -> Updates:
    """Those that train: eager ones where a capture has failed."""
    return getattr(updates, "fallback", None) or updates


def learning(loop: Loop, seconds: float) -> float:
    """Updates/s on what the store holds, whatever the pace; sampling and feedback included."""
    values, updates = loop.values.at(loop.step), _working(loop.updates)
    once: Callable[[], int]
    if isinstance(updates, CapturedReplay):
        updates.start(values)
        graph = updates.graph
        assert graph is not None, "training came first"

        def once() -> int:
            with updates.streams.learning():
                for _ in range(16):
                    graph.launch()
                    loop.learner.count_update()
            return 16
    elif isinstance(updates, CapturedUnrolls):
        while not updates.ready():
            loop.iterate()

        def once() -> int:
            before = loop.learner.updates
            with updates.streams.learning():
                updates.launch()
            return loop.learner.updates - before
    else:
        replayed = not isinstance(loop.learner.plan.sampler, Fifo)
        if not replayed:  # a queue gives each sample once: keep one
            loop.fleet.publish(loop.learner.net)
            while not loop.store.ready():
                for got in loop.fleet.poll(values):
                    loop.store.add(got.chunk)
        sample = loop.store.sample()

        def once() -> int:
            before = loop.learner.updates
            used = loop.store.sample() if replayed else sample
            priority = loop.learner.learn(used, values)
            if priority is not None:
                loop.store.feedback(used.ids, priority)
            return loop.learner.updates - before

    once()
    _sync()
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        done += once()
        if done % 512 == 0:
            _sync()  # launches must not run minutes ahead of the device
    _sync()
    return done / (time.perf_counter() - start)


def training(loop: Loop, cfg: Config, folder: Path, seconds: float) -> dict[str, float | None]:
    """Training with metrics and CSV files, from the first update on."""
    recorder = Recorder(cfg, RunDir(folder), loop, (), quiet=True, command=["bench"], exact=False,
                        replay_bytes=0)  # fmt: skip
    recorder.open(None)  # not `started`, which prints the header of a run
    loop.clock.mark(loop.step, loop.learner.updates)
    while loop.learner.updates == 0:
        loop.iterate()
        for tick in loop.hooks.tick:
            tick()
    _sync()
    learner, store = loop.learner, loop.store
    learner.flush()
    step, updates, refused = loop.step, learner.updates, learner.skipped
    drawn = store.samples_drawn
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        loop.iterate()
        loop.run_periodic()
    _sync()
    spent = time.perf_counter() - start
    learner.flush()  # else the newest refused updates would count as done
    steps, updates = loop.step - step, learner.updates - updates
    refused = learner.skipped - refused
    # In samples: each step inserted owes `replay_ratio` of them, a queue each row once.
    due = steps * (1.0 if isinstance(learner.plan.sampler, Fifo) else learner.plan.replay_ratio)
    done = (store.samples_drawn - drawn) * updates / max(updates + refused, 1)
    recorder.close()
    return {
        "steps_per_second": steps / spent,
        "updates_per_second": updates / spent,
        "done_of_due": done / max(due, 1),
        "score": loop.scores.mean,
        **{f"time_{k}": v for k, v in loop.clock.split().items()},
    }


def measure(
    cfg: Config,
    *,
    seconds: float = 10.0,
    modes: tuple[str, ...] = ("auto", "off"),
    label: str = "",
    full: bool = False,
    learner_only: bool = False,
    say: Callable[[str], None] = silent,
) -> dict[str, Any]:
    """Measure one configuration, captured and eager. `full`: fill the replay with random rows
    first; `learner_only`: measure only the learner on such a replay. `say` is called with the name
    and duration of each measurement."""
    check(cfg, full=full or learner_only)
    start = time.perf_counter()
    envs = make_envs(cfg.env, seed=cfg.run.seed, quiet=False)
    result: dict[str, Any] = {
        "label": label or cfg.algo_name,
        "algo": cfg.algo_name,
        "env": envs.spec.id,
        "envs": envs.num,
        "groups": len(envs.groups),
        "threads": getattr(envs.backend, "threads", 1),
        "build_seconds": time.perf_counter() - start,
        "modes": {},
    }
    torch.set_num_threads(cfg.run.thread_count)
    try:
        for mode in modes:
            one = Config.model_validate(
                cfg.model_copy(update={"run": cfg.run.model_copy(update={"capture": mode})})
            )
            with (
                tempfile.TemporaryDirectory(prefix="ludus-bench-") as folder,
                explain_out_of_memory(cfg, fix=LESS),
                own_peak() as peak,
            ):
                run = RunDir(Path(folder))
                if learner_only:
                    row = _learner_mode(one, envs, run, seconds)
                else:
                    name = cfg.algo_name if len(modes) == 1 else f"{cfg.algo_name} ({mode})"
                    named = partial(_say_of, name, say)
                    row = _one_mode(one, envs, run, seconds, full, named)
            result["modes"][mode] = row | peak
    finally:
        envs.close()
    return result


def machine() -> dict[str, Any]:
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cpu": platform.processor() or platform.machine(),
        "cores": available_cores(),
        "gpu": gpu,
    }


@contextmanager
def own_peak() -> Iterator[dict[str, float]]:
    """Peak GPU memory of the block, without garbage of an earlier one."""
    peak: dict[str, float] = {}
    gc.collect()  # a loop and its parts refer to each other
    if not torch.cuda.is_available():
        yield peak
        return
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    yield peak
    peak["gpu_gb"] = torch.cuda.max_memory_allocated() / 1e9


@contextmanager
def _built(cfg: Config, envs: Envs, run: RunDir) -> Iterator[tuple[Loop, dict[str, Any]]]:
    """A loop over environments that outlive it, and its facts."""
    loop, replay_bytes = build_loop(cfg, registry.make(cfg.algo), run, envs=envs)
    try:
        loop.barrier(0)
        yield loop, {"compute": loop.compute_info, "replay_gb": replay_bytes / 1e9}
    finally:
        loop.close()


def _say_of(name: str, say: Callable[[str], None], text: str) -> None:
    say(f"{name}: {text}")


def _time_of_training(loop: Loop, seconds: float, rate: float) -> str:
    text = f"{seconds:g} s after its first update"
    if isinstance(loop.store, ReplayStore):
        steps = max(0, loop.store.ratio.warmup - loop.store.ratio.steps_inserted)
        before = f"{show_count(steps)} steps before it"
        text += f" ({before}, {steps / rate:.0f} s or more)" if steps else ""
    return text


def _one_mode(
    cfg: Config, envs: Envs, run: RunDir, seconds: float, full: bool, say: Callable[[str], None]
) -> dict[str, Any]:
    """`say` announces each part of a measurement, which takes about a minute."""
    half, alone = seconds / 2, f"{envs.num} environments alone"
    say(f"{alone}, {half:g} s")
    before = ceiling(envs, half)
    with _built(cfg, envs, run) as (loop, row):
        if full:
            row["fill_seconds"] = _fill(loop)
        say(f"training, {_time_of_training(loop, seconds, before)}")
        row |= training(loop, cfg, run.path, seconds)
        row["capture_seconds"] = loop.capture_seconds
        say(f"learner alone, {half:g} s")
        row |= _learner_alone(loop, half)
        say(f"acting alone, {half:g} s")
        row["acting_alone_steps_per_second"] = acting(loop, half)
    say(f"{alone} once more, {half:g} s")
    row["ceiling_steps_per_second"] = (before + ceiling(envs, half)) / 2
    row["of_ceiling"] = row["steps_per_second"] / row["ceiling_steps_per_second"]
    return row


def _learner_mode(cfg: Config, envs: Envs, run: RunDir, seconds: float) -> dict[str, Any]:
    with _built(cfg, envs, run) as (loop, row):
        row["fill_seconds"] = _fill(loop)
        assert isinstance(loop.store, ReplayStore)
        ratio = loop.store.ratio  # so that one update is due, which captures
        ratio.steps_inserted = max(ratio.steps_inserted, ratio.warmup)
        row |= _learner_alone(loop, seconds)
        row["capture_seconds"] = loop.capture_seconds
    return row


def check(cfg: Config, *, full: bool = False) -> None:
    """Refuse what cannot be measured, before anything is built."""
    if cfg.run.capabilities.own_processes or cfg.run.actors > 1:
        raise LudusError(
            "E104",
            f"{cfg.algo_name} with run.fleet={cfg.run.fleet} run.actors={cfg.run.actors} cannot be "
            "measured",
            where="ludus bench speed",
            why="it compares training with environments alone in this process, which those of "
            "other actors are not",
            fix="run.fleet=inline run.actors=1",
        )
    if full and not isinstance(registry.make(cfg.algo).plan.view, NStep | Sequence):
        raise LudusError(
            "E104", f"{cfg.algo_name} has no replay of transitions that could be filled",
            where="--full", fix="leave --full out",
        )  # fmt: skip


def _fill(loop: Loop) -> float:
    assert isinstance(loop.store, ReplayStore), "`check` was asked"
    start = time.perf_counter()
    fill(loop.store)
    _sync()
    return time.perf_counter() - start


def _learner_alone(loop: Loop, seconds: float) -> dict[str, Any]:
    rate = learning(loop, seconds)
    row: dict[str, Any] = {"learner_alone_updates_per_second": rate}
    if isinstance(loop.store, ReplayStore):
        row["learner_alone_on"] = held(loop.store)
    return row
