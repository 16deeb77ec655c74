"""Work that can wait gives way where cores are short, and does not where they are not."""

from __future__ import annotations

import time

import psutil
import pytest

from ludus.process import yield_cpu
from ludus.process.yield_cpu import REST, CpuYielder


@pytest.fixture
def machine(monkeypatch):
    """16 threads of 8 cores, all of them ours."""
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 16 if logical else 8)
    monkeypatch.setattr(yield_cpu, "available_cores", lambda: 16)


@pytest.mark.parametrize(
    ("busy", "own", "expected"),
    [(3.0, 1.0, False), (8.0, 1.0, False), (8.6, 1.0, True), (16.0, 0.3, True)],
)
def test_a_core_counts_as_spare_only_if_its_other_thread_rests(machine, busy, own, expected):
    assert yield_cpu.crowded(busy, own) is expected


@pytest.mark.parametrize(("busy", "expected"), [(8.0, False), (8.2, True), (12.5, True)])
def test_threads_that_are_called_cores_are_not_taken_for_cores(monkeypatch, busy, expected):
    """What a virtual machine says of itself: emulators on 11.5 of 16 leave nothing to spare."""
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 16)
    monkeypatch.setattr(yield_cpu, "available_cores", lambda: 16)
    assert yield_cpu.crowded(busy, 1.0) is expected


def test_on_two_cores_it_works_freely_once_training_is_over(monkeypatch):
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 2)
    monkeypatch.setattr(yield_cpu, "available_cores", lambda: 2)
    assert yield_cpu.crowded(2.0, 0.5) and not yield_cpu.crowded(1.05, 1.0)


def test_a_share_of_a_larger_machine_is_taken_for_busy(machine, monkeypatch):
    monkeypatch.setattr(yield_cpu, "available_cores", lambda: 4)
    assert yield_cpu.crowded(0.0, 0.0)


def test_it_rests_in_proportion_to_its_work(monkeypatch):
    monkeypatch.setattr(yield_cpu, "LOOK", 0.0)
    slept, short, now = [], [True], [0.0]
    polite = CpuYielder(lambda busy, own: short[0], slept.append, lambda: now[0])
    now[0] += 0.02
    polite.pause()
    assert slept[0] == pytest.approx(REST * 0.02) and polite.resting
    short[0] = False
    polite.pause()
    assert len(slept) == 1 and not polite.resting, "the machine is free again"


def test_one_rest_is_bounded(monkeypatch):
    """By a clock on the wall, which helped work has, an hour's stop looks like an hour's work."""
    monkeypatch.setattr(yield_cpu, "LOOK", 0.0)
    slept, now = [], [0.0]
    polite = CpuYielder(lambda busy, own: True, slept.append, lambda: now[0])
    for worked in (3600.0, 1.0):
        now[0] += worked
        polite.pause()
    assert slept == [yield_cpu.LONGEST, REST * 1.0] and yield_cpu.LONGEST == 60.0


def test_the_machine_is_not_looked_at_after_every_row():
    looks = []
    polite = CpuYielder(lambda busy, own: bool(looks.append((busy, own))))
    for _ in range(100):
        polite.pause()
    assert looks == []


def test_who_waited_for_a_core_is_not_sent_to_rest_for_it(monkeypatch):
    monkeypatch.setattr(yield_cpu, "LOOK", 0.0)
    slept = []
    polite = CpuYielder(lambda busy, own: True, slept.append)
    time.sleep(0.3)  # stopped, or without a core
    polite.pause()
    assert slept[0] < REST * 0.2


def test_what_was_before_the_work_is_not_rested_for(monkeypatch):
    monkeypatch.setattr(yield_cpu, "LOOK", 0.0)
    slept, now = [], [0.0]
    polite = CpuYielder(lambda busy, own: True, slept.append, lambda: now[0])
    now[0] += 1000.0  # waited for something to do
    polite.begin()
    now[0] += 0.5
    polite.pause()
    assert slept == [REST * 0.5]


def test_the_work_of_our_processes_is_our_own(monkeypatch):
    """Else a machine that is busy with our own worker would be taken for crowded."""
    monkeypatch.setattr(yield_cpu, "LOOK", 0.0)
    seen, spent = [], iter([10.0, 13.0])
    polite = CpuYielder(lambda busy, own: bool(seen.append(own)), spent=lambda: next(spent))
    start = polite._looked
    polite.pause()
    assert seen == [3.0 / (polite._looked - start)]


class Family:
    """A process, or one that has ended since it was listed."""

    def __init__(self, times, children=()) -> None:
        self.times, self.below = times, list(children)

    def children(self, recursive):
        assert recursive
        return [one for child in self.below for one in (child, *child.children(True))]

    def cpu_times(self):
        if self.times is None:
            raise psutil.NoSuchProcess(1)
        return (*self.times, 99.0)  # what follows is time that was waited


def test_the_family_includes_processes_that_work_and_that_have_ended(monkeypatch):
    """User and system time, and both of children that have ended."""
    actor = Family((4.0, 0.5, 8.0, 0.0), [Family((16.0, 0.0, 0.0, 0.0)), Family(None)])
    me = Family((1.0, 2.0, 32.0, 64.0), [actor])
    monkeypatch.setattr(yield_cpu.psutil, "Process", lambda: me)
    assert yield_cpu.family_seconds() == 127.5
