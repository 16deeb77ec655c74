"""One run for ten minutes under faults in random order: it goes on or is resumed after each.

LUDUS_CHAOS_SECONDS=60 is a shorter one; each kind of fault comes at least once.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from ludus.track.checkpoint.format import checkpoint_paths, newest_resumable
from ludus.track.checkpoint.reader import load
from ludus.track.metrics.writer import read_metrics
from ludus.track.run_dir.rundir import RunDir
from ludus.track.run_dir.status import read_status
from tests.fleets.test_actor_health import shared_files
from tests.started import gone, kept, survivors

SECONDS = float(os.environ.get("LUDUS_CHAOS_SECONDS") or 600)
PATIENCE = 180.0  # seconds for a run to go on, on a machine that has other work
ROOT = Path(__file__).parents[2]
SETTINGS = (
    "steps=1G", "fleet=processes", "actors=3", "env.num=2", "warmup=200", "batch=8",
    "capacity=20k", "replay_ratio=1", "checkpoint_every=1k", "log.every=1k", "tensorboard=off",
    "actor.hang_seconds=8", "actor.restarts=1000000",
)  # fmt: skip


class Chaos:
    """A run in a process of its own, and what is known of it from outside."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.path, self.rng = folder, folder / "x", random.Random(seed)
        self.checkpoints = self.path / "checkpoints"
        self.children: set[int] = set()
        self.shared: set[str] = set()
        self.sessions = 0
        self.begin("train", "dqn", "CartPole-v1", *SETTINGS, "--runs-dir", folder, "--run", "x")

    def begin(self, *words: object) -> None:
        self.sessions += 1
        with open(self.folder / f"said-{self.sessions}", "w") as said:
            self.process = kept(
                subprocess.Popen(
                    [sys.executable, "-m", "ludus", *map(str, words), "-q"],
                    cwd=ROOT, stdout=said, stderr=said, start_new_session=True,
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                )
            )  # fmt: skip
        # Not from the step it had reached: after a disk error it saves nothing for a while.
        self.goes_on(newest_resumable(self.checkpoints) or 0)

    @property
    def step(self) -> int:
        with suppress(OSError, ValueError):
            return int(read_status(RunDir(self.path)).get("step", 0))
        return 0

    @property
    def actors(self) -> list[int]:
        result = read_status(RunDir(self.path)).get("actors", {})
        pids = [int(word) for word in str(result.get("pids", "")).split()]
        return [pid for pid in pids if pid in self.children and not gone(pid)]

    def until(self, done: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.2)

    def said(self) -> str:
        return (self.folder / f"said-{self.sessions}").read_text()[-4000:]

    def look(self) -> None:
        """Remember what this session has, for when it is gone."""
        with suppress(psutil.NoSuchProcess):
            found = psutil.Process(self.process.pid).children(recursive=True)
            self.children |= {child.pid for child in found}
        for pid in (self.process.pid, *self.children):
            with suppress(OSError):
                self.shared |= shared_files(pid)

    def saved(self) -> int:
        """The step of the newest checkpoint to resume from. One of weights alone that is being
        removed has no manifest for a moment, and would count as damaged."""
        steps = []
        for _ in range(3):
            steps.append(newest_resumable(self.checkpoints) or 0)
            time.sleep(0.1)
        return min(steps)

    def goes_on(self, step: int) -> None:
        """It does more steps and writes another checkpoint, or has ended."""
        saved = self.saved()
        self.until(
            lambda: (
                self.process.poll() is not None
                or (self.step > step and (newest_resumable(self.checkpoints) or 0) > saved)
            )
        )
        self.look()

    def ended(self, saved: int) -> None:
        """Nothing is left of it but whole checkpoints, none older than what had been saved."""
        self.process.wait(PATIENCE)
        assert not survivors(self.children, PATIENCE), self.said()
        assert not [name for name in self.shared if Path(name).exists()]
        self.children, self.shared = set(), set()
        assert (newest_resumable(self.checkpoints) or 0) >= saved
        for path in checkpoint_paths(self.checkpoints).values():
            assert load(path).step >= 0, "every file has its checksum"

    def resume(self) -> None:
        saved = newest_resumable(self.checkpoints)
        self.begin("resume", self.path)
        resumed = [e for e in read_metrics(self.path / "events.jsonl") if e["kind"] == "resume"]
        assert resumed[-1]["step"] == saved, "not a step before the newest checkpoint"

    # Faults. Each says which exit code it may end the run with.
    def kill_actor(self) -> set[int]:
        os.kill(self.rng.choice(self.actors), signal.SIGKILL)
        return set()

    def pause_actor(self) -> set[int]:
        pid = self.rng.choice(self.actors)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(self.rng.uniform(0.2, 3))
        with suppress(ProcessLookupError):  # taken for hung, and replaced
            os.kill(pid, signal.SIGCONT)
        return set()

    def hang_actor(self) -> set[int]:
        pid = self.rng.choice(self.actors)
        os.kill(pid, signal.SIGSTOP)
        self.until(lambda: gone(pid))
        return set()

    def pause_run(self) -> set[int]:
        everybody = [self.process.pid, *(p for p in self.children if not gone(p))]
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in everybody:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            time.sleep(self.rng.uniform(0.2, 3))
        return set()

    def fill_disk(self) -> set[int]:
        """No file may grow beyond a few kilobytes, for a while."""
        free = (int(psutil.RLIM_INFINITY),) * 2
        psutil.Process(self.process.pid).rlimit(psutil.RLIMIT_FSIZE, (4096, free[1]))
        time.sleep(self.rng.uniform(0.5, 6))
        with suppress(psutil.NoSuchProcess):
            psutil.Process(self.process.pid).rlimit(psutil.RLIMIT_FSIZE, free)
        return {3}

    def kill_run(self) -> set[int]:
        self.process.kill()
        return {-signal.SIGKILL}

    def interrupt(self) -> set[int]:
        os.killpg(self.process.pid, signal.SIGINT)
        return {130}

    def terminate(self) -> set[int]:
        os.killpg(self.process.pid, signal.SIGTERM)
        return {143}

    FAULTS = (
        kill_actor, pause_actor, hang_actor, pause_run, fill_disk, kill_run, interrupt, terminate,
    )  # fmt: skip
    ENDS = (kill_run, interrupt, terminate)

    def suffer(self, fault: Callable[[Chaos], set[int]]) -> None:
        self.until(lambda: self.actors or self.look())
        step, saved = self.step, self.saved()
        codes = fault(self)
        if fault in self.ENDS:
            self.process.wait(PATIENCE)
        else:
            self.goes_on(step)
        if self.process.poll() is None:
            return
        assert self.process.returncode in codes, (fault.__name__, self.said())
        self.ended(saved)
        self.resume()


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 10 * PATIENCE)
def test_a_run_survives_faults_in_any_order(tmp_path) -> None:
    chaos, start = Chaos(tmp_path, seed=14), time.monotonic()
    done: list[str] = []
    while len(done) < len(Chaos.FAULTS) or time.monotonic() < start + SECONDS:
        kinds = chaos.rng.sample(Chaos.FAULTS, len(Chaos.FAULTS))
        for fault in kinds:  # every round has each once
            chaos.suffer(fault)
            done.append(fault.__name__)
            print(f"{time.monotonic() - start:6.1f} s  {fault.__name__}, step {chaos.step}")
            if len(done) >= len(Chaos.FAULTS) and time.monotonic() >= start + SECONDS:
                break
    saved = chaos.saved()
    os.killpg(chaos.process.pid, signal.SIGINT)
    assert chaos.process.wait(PATIENCE) == 130, chaos.said()
    chaos.ended(saved)
    assert set(done) == {fault.__name__ for fault in Chaos.FAULTS}
    # Checkpoints and what is being written leave nothing half done behind.
    assert not [p for p in chaos.checkpoints.iterdir() if p.name.startswith(".tmp-")]
