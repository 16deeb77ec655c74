"""A full disk: said at once and when it is over, bounded in memory, asked less and less often."""

from __future__ import annotations

import errno
import os
from itertools import pairwise

import pytest

from ludus.errors import LudusError
from ludus.track.metrics import writer as metrics
from ludus.track.metrics.writer import MetricWriter, read_metrics
from ludus.track.run_dir.rundir import RunDir
from ludus.types import EpisodeEnd


class Disk:
    """Refuses every write while it is full, and counts what it was asked for."""

    def __init__(self, monkeypatch) -> None:
        self.full, self.asked = False, 0
        real = metrics._Stream._write

        def write(stream, data):
            self.asked += 1
            if self.full:
                real(stream, data[: len(data) // 2])  # a part of it still fits
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            real(stream, data)

        monkeypatch.setattr(metrics._Stream, "_write", write)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def disk(monkeypatch):
    return Disk(monkeypatch)


@pytest.fixture
def run(tmp_path):
    return RunDir.create(tmp_path, "E", "dqn", 1, name="run")


def test_a_full_disk_is_said_once_and_so_is_its_end(run, disk) -> None:
    clock, said = Clock(), []
    writer = MetricWriter(run, say=said.append, clock=clock)
    writer.metrics(1, 1, {})
    disk.full = True
    for step in range(2, 300):
        clock.now += 1
        writer.metrics(step, step, {})
    assert len(said) == 1 and "metrics.jsonl: No space left" in said[0] and "memory" in said[0]
    disk.full = False
    clock.now += 100
    writer.episode(300, EpisodeEnd(0, 1.0, 5, "terminated"))
    assert len(said) == 2 and "lines kept, none dropped" in said[1]
    writer.close()
    assert [row["step"] for row in read_metrics(run.metrics)] == list(range(1, 300))
    assert len(run.episodes.read_text().splitlines()) == 2
    kinds = [(e["kind"], e["step"]) for e in read_metrics(run.events)]
    assert kinds == [("disk full", 2), ("disk written again", 300)]


def test_it_is_asked_at_growing_intervals(run, disk) -> None:
    clock = Clock()
    writer = MetricWriter(run, clock=clock)
    disk.full = True
    asked = []
    for second in range(400):
        clock.now, before = float(second), disk.asked
        writer.metrics(second, second, {})
        asked += [second] if disk.asked > before else []
    gaps = [b - a for a, b in pairwise(asked)]
    assert gaps[:6] == [1, 2, 4, 8, 16, 32] and set(gaps[6:]) == {60}
    disk.full = False
    writer.close()


def test_what_waits_is_bounded_and_what_is_dropped_is_counted(run, disk, monkeypatch) -> None:
    monkeypatch.setattr(metrics, "BUFFER", 10_000)
    clock, said = Clock(), []
    writer = MetricWriter(run, say=said.append, clock=clock)
    disk.full = True
    clock.now += 10
    for step in range(1000):
        writer.metrics(step, step, {"text": "x" * 100})
    assert writer.waiting < 12_000
    disk.full = False
    clock.now += 1000
    writer.episode(1000, EpisodeEnd(0, 1.0, 5, "terminated"))
    steps = [row["step"] for row in read_metrics(run.metrics)]
    assert steps == list(range(1000 - len(steps), 1000)) and 50 < len(steps) < 100
    assert f"{1000 - len(steps)} dropped" in said[1]
    writer.close()
    event = read_metrics(run.events)[-1]
    assert event["dropped"] == 1000 - len(steps)
    head = run.evals.read_text()
    assert head.startswith("step,"), "what names the columns is never dropped"


def test_what_is_never_written_is_said_at_the_end(run, disk) -> None:
    said = []
    writer = MetricWriter(run, say=said.append)
    disk.full = True
    for step in range(7):
        writer.metrics(step, step, {})
    writer.close()
    assert "metrics.jsonl" in said[-1] and "lines are lost" in said[-1]


def test_a_sync_that_fails_is_no_crash(run, monkeypatch) -> None:
    writer = MetricWriter(run)
    writer.metrics(1, 1, {})

    def refuse(fd):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(metrics.os, "fsync", refuse)
    with pytest.raises(LudusError) as caught:
        writer.offsets()
    assert caught.value.code == "E301"
    monkeypatch.undo()
    assert writer.offsets()["metrics"] > 0, "it is asked again"
    writer.close()
