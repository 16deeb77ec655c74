"""A call that does not return: when it is reported, and how a signal gets out of it."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from ludus.process.signals import HungError, Signals
from ludus.process.watchdog import Call, Pulse, Watchdog


@pytest.fixture(autouse=True)
def _spare_this_process():
    """The watchdog sends a signal again. One that arrives after the test would end pytest."""
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    yield
    signal.signal(signal.SIGTERM, before)


class Reports:
    def __init__(self) -> None:
        self.stalls: list[tuple[str, str, str]] = []
        self.returns: list[str] = []
        self.late, self.back = threading.Event(), threading.Event()

    def stalled(self, what: str, seconds: float, line: str, stack: str) -> None:
        self.stalls.append((what, line, stack))
        self.late.set()

    def resumed(self, what: str, seconds: float) -> None:
        self.returns.append(what)
        self.back.set()

    def rescue(self) -> None:
        raise AssertionError("nothing is to be saved here")


class Stubborn(Reports):
    def rescue(self) -> None:
        self.back.set()


def watched(result: Reports, signals: Signals, grace: float = 60.0) -> tuple[Watchdog, Pulse]:
    pulse = Pulse()
    return Watchdog(pulse, signals, result, grace=grace, tick=0.02), pulse


def test_a_late_call_is_reported_once_with_its_line_and_so_is_its_return() -> None:
    result, signals = Reports(), Signals()
    dog, pulse = watched(result, signals)
    with dog:
        pulse.enter(Call(lambda: "step()", 0.05))
        assert result.late.wait(60)
        time.sleep(0.2)
        pulse.leave()
        assert result.back.wait(60)
    assert result.returns == ["step()"] and len(result.stalls) == 1
    what, line, stack = result.stalls[0]
    assert what == "step()" and line.startswith("test_watchdog.py:")
    assert "test_a_late_call_is_reported_once" in stack


def test_progress_inside_a_call_and_calls_without_a_limit_are_not_late() -> None:
    result, signals, at = Reports(), Signals(), [0]
    dog, pulse = watched(result, signals)
    with dog:
        for call in (Call(lambda: "slots", 30.0, lambda: at[0]), Call(lambda: "workers")):
            pulse.enter(call)
            for at[0] in range(20):
                time.sleep(0.01)
            pulse.leave()
    assert not result.stalls and not result.returns


@pytest.mark.parametrize("late", [True, False])
def test_a_signal_interrupts_a_call_that_hangs(late, monkeypatch) -> None:
    """At once where it is known to hang, else after the grace."""
    result = Stubborn()
    # On a busy machine this thread may need longer than the rest of the grace to wake up.
    monkeypatch.setattr(os, "_exit", lambda code: None)
    with Signals() as signals:
        monkeypatch.setattr(signals, "abandon", lambda: None)
        signals.stop = lambda _: None
        dog, pulse = watched(result, signals, grace=60.0 if late else 0.1)
        with dog:
            pulse.enter(Call(lambda: "step()", 0.05 if late else None))
            if late:
                assert result.late.wait(60)
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
            with pytest.raises(HungError) as caught:
                time.sleep(100)
            pulse.leave()
    assert caught.value.code == 143


@pytest.mark.parametrize("late", [True, False])
def test_native_code_is_left_within_the_grace(late, monkeypatch) -> None:
    """Whether or not it was known to hang: one grace for both, to return and to be interrupted."""
    result, signals, pulse = Stubborn(), Signals(), Pulse()
    forced: list[float] = []
    codes: list[int] = []
    monkeypatch.setattr(signals, "_send_again", lambda: forced.append(seconds))
    monkeypatch.setattr(os, "_exit", codes.append)
    dog = Watchdog(pulse, signals, result, grace=4.0)
    pulse.enter(Call(lambda: "step()", 0.5 if late else None))
    dog._look(0.0)
    dog._look(1.0)
    assert result.late.is_set() == late
    signals.number, seconds = signal.SIGTERM, 0.0
    while not codes:
        seconds += dog.tick
        dog._look(dog.tick)
    assert codes == [143] and result.back.is_set() and seconds <= 4.0
    assert forced[0] == (dog.tick if late else 2.0), "it has half of it to return by itself"
    assert seconds - forced[0] >= 1.0, "and time to be interrupted"


def test_a_signal_leaves_code_of_our_own_alone() -> None:
    result, asked = Reports(), threading.Event()
    with Signals() as signals:
        signals.stop = lambda _: asked.set()
        dog, pulse = watched(result, signals, grace=0.05)
        with dog:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.3)  # a checkpoint is being written, say
            pulse.enter(Call(lambda: "step()"))
            pulse.leave()
    assert asked.is_set()


def test_signals_that_end_while_the_watchdog_listens_do_not_end_it(monkeypatch) -> None:
    """`listen` becomes None when the handlers are put back, also between two reads of it."""
    result, signals = Reports(), Signals()
    reads, first = [], threading.Event()
    died: list[object] = []
    monkeypatch.setattr(threading, "excepthook", died.append)

    class Ending(Signals):
        @property
        def listen(self) -> int | None:
            reads.append(1)
            first.set()
            return None if len(reads) % 2 == 0 else pipe[0]

        @listen.setter
        def listen(self, _: int | None) -> None: ...

    pipe = os.pipe()
    os.write(pipe[1], b"\0" * 64)
    signals = Ending()
    dog, _ = watched(result, signals)
    with dog:
        assert first.wait(60)
        time.sleep(0.2)
    for end in pipe:
        os.close(end)
    assert len(reads) > 2 and not died
