"""When a child process counts as hung, without any process."""

import os
import signal
import sysconfig
from pathlib import Path

import pytest

from ludus.process import supervisor
from ludus.process.supervisor import (
    Child,
    Supervisor,
    exit_cause,
    hang_cause,
    has_dump,
    hung_at,
    remove_if_empty,
    request_dump,
    verdict,
)
from ludus.track.atomic_files import read_tail


@pytest.mark.parametrize(
    ("now", "beat", "dumping", "said"),
    [
        (10.0, 8.0, None, "fine"),
        (10.0, 6.5, None, "ask"),
        (10.5, 6.5, 10.0, "fine"),  # it may still be writing
        (11.5, 6.5, 10.0, "dead"),
        (11.5, 10.2, 10.0, "spare"),
    ],
)
def test_who_is_silent_is_asked_first_and_spared_if_that_wakes_it(now, beat, dumping, said):
    assert verdict(now, beat, dumping, 3.0) == said


def test_the_timeout_while_environments_are_made():
    it = Supervisor(30.0, 120.0)
    it.slowest = 50.0
    assert it.timeout(first=True, ready=True) == 30
    assert it.timeout(first=True, ready=False) == 120
    assert it.timeout(first=False, ready=False) == 100
    it.slowest = 1.0
    assert it.timeout(first=False, ready=False) == 30


def test_how_a_process_ended():
    assert (
        "signal 9" in exit_cause(-9)
        and "exit code 3" in exit_cause(3)
        and "exit code" in exit_cause(None)
    )


def test_only_stacks_that_were_written_are_kept(tmp_path):
    empty, full = tmp_path / "a.stack", tmp_path / "b.stack"
    empty.touch()
    full.write_text("File")
    for path in (empty, full, None, tmp_path / "none"):
        remove_if_empty(path)
    assert not empty.exists() and has_dump(full) and not has_dump(None)


def test_only_who_has_a_file_for_its_stack_is_asked_for_it(tmp_path, monkeypatch):
    """The signal ends a process that is not prepared for it yet."""
    sent, stacks = [], tmp_path / "a.stack"
    monkeypatch.setattr(os, "kill", lambda *words: sent.append(words))
    request_dump(7, None)
    request_dump(7, stacks)
    assert not sent and hang_cause(3.0, stacks, read_tail).endswith("that is still starting cannot")
    stacks.touch()
    request_dump(None, stacks)
    request_dump(7, stacks)
    assert sent == [(7, signal.SIGUSR1)]
    assert hang_cause(3.0, stacks, read_tail).endswith("as a stopped process cannot")


LUDUS = str(Path(supervisor.__file__).parents[1])
BESIDE = f"""Thread 0x1 (most recent call first):
  File "/usr/lib/python3/selectors.py", line 415 in select
  File "{LUDUS}/process/child.py", line 19 in _leave_with_parent
"""
WORKING = f"""Current thread 0x2 (most recent call first):
%s  File "{LUDUS}/envs/serial.py", line 123 in recv
  File "{LUDUS}/run/actor.py", line 101 in live
  File "/usr/lib/python3/multiprocessing/process.py", line 108 in run
"""
SOCKET = f'  File "{sysconfig.get_path("stdlib")}/socket.py", line 706 in readinto\n'
GAME = '  File "/home/me/games/maze.py", line 30 in step\n'
WRAPPER = f'  File "{sysconfig.get_path("purelib")}/gymnasium/core.py", line 300 in step\n'


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        (SOCKET + GAME + WRAPPER, "maze.py:30 in step"),
        (SOCKET + WRAPPER, "socket.py:706 in readinto"),
        ("", "serial.py:123 in recv"),
    ],
)
def test_the_line_that_hangs_is_the_environments_own(frames, said):
    assert hung_at(f"{BESIDE}\n{WORKING % frames}") == said
    assert hung_at(BESIDE) == ""


def test_repeated_silence_is_reported_once_in_a_while():
    it, result = Supervisor(3.0, 120.0), []
    it.warn = result.append

    def continues(index, now):
        child = Child(None, None, index=index, dump_asked=now - 0.5)
        return not it.hangs(child, 1.0, now, 3.0) and len(result)

    assert [continues(0, now) for now in (1.0, 2.0, 30.9, 31.0, 32.0)] == [1, 1, 1, 2, 2]
    assert continues(1, 2.0) == 3, "of another one it is the first time"
