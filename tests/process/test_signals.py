"""Which signals leave, which of them twice, and who is spared."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from ludus.process.signals import STOP_SIGNALS, HungError, SignalledError, Signals

NOT_INT = [s for s in STOP_SIGNALS if s != signal.SIGINT]


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_the_first_signal_asks_and_a_ctrl_c_after_it_raises(number) -> None:
    asked: list[str] = []
    with Signals() as signals:
        signals.stop = asked.append
        send(number)
        assert len(asked) == 1 and signals.code == 128 + number
        with pytest.raises(SignalledError) as caught:
            send(signal.SIGINT)
    assert caught.value.code == 128 + number, "of the signal that came first"


@pytest.mark.parametrize("number", NOT_INT)
def test_other_signals_may_come_twice(number) -> None:
    """The shell and the system both send SIGHUP; a warning is followed by SIGTERM."""
    asked: list[str] = []
    with Signals() as signals:
        signals.stop = asked.append
        for again in (number, number, signal.SIGTERM):
            send(again)
    assert len(asked) == 1


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_with_nothing_to_save_the_first_signal_raises(number) -> None:
    with Signals(), pytest.raises(SignalledError) as caught:
        send(number)
    assert caught.value.code == 128 + number and isinstance(caught.value, KeyboardInterrupt)


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(s) for s in STOP_SIGNALS]
    with Signals():
        assert signal.getsignal(signal.SIGHUP) not in before
    assert [signal.getsignal(s) for s in STOP_SIGNALS] == before
    assert signal.set_wakeup_fd(-1) == -1


def test_what_nohup_ignores_stays_ignored() -> None:
    script = (
        "import os, signal; from ludus.process.signals import Signals\n"
        "signals = Signals(); signals.stop = print\n"
        "with signals:\n"
        "  os.kill(os.getpid(), signal.SIGHUP); os.kill(os.getpid(), signal.SIGUSR1)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=100,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )  # fmt: skip
    assert (ran.returncode, ran.stdout.split()) == (0, ["terminated", "by", "SIGUSR1"]), ran.stderr


def test_a_signal_that_came_just_before_a_sleep_is_sent_again(monkeypatch) -> None:
    """A signal between Python's check and the system call ends no sleep: nobody handles it."""
    sent: list[int] = []
    kill = signal.pthread_kill

    def lose_the_first(thread: int, number: int) -> None:
        sent.append(number)
        if len(sent) > 1:
            kill(thread, number)

    monkeypatch.setattr(signal, "pthread_kill", lose_the_first)
    with Signals() as signals:
        signals.stop = lambda reason: None
        send(signal.SIGINT)
        signals.force(lambda: True)
        with pytest.raises(HungError):
            signals.remind()
        assert sent == [signal.SIGINT] * 2
        signals.remind()
        assert len(sent) == 2, "one that was handled is not repeated"
