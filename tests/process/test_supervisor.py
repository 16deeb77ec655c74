"""Children that do nothing but what each test needs: start, messages, death, end."""

from __future__ import annotations

import faulthandler
import os
import signal
import time

import pytest

from ludus.errors import LudusError
from ludus.process.child import dump_when_asked, run_child
from ludus.process.fork_server import process_context, signals_delayed
from ludus.process.supervisor import Child, close_all, hang_cause, ready


def body_of(pipe, what, path):
    def answers():
        dump_when_asked(path, lambda file: open(file, "ab", buffering=0))
        pipe.send(("hello", os.getpid()))
        command, _ = pipe.recv()
        while what == "hangs" or command != "close":
            time.sleep(0.01)

    def talks():
        while True:
            pipe.send(("chatter", b"x" * 10_000))
            if pipe.poll(0):
                return

    def raises():
        raise LudusError("E206", "a tooth broke") if what == "known" else ValueError("a tooth")

    def quits():
        os._exit(7)

    return {"talks": talks, "quits": quits}.get(what, raises if "known" in what else answers)


def life(pipe, what, path):
    run_child(pipe, body_of(pipe, what, path))


@pytest.fixture
def start(tmp_path):
    context, children = process_context("ludus.envs.make"), []

    def starts(what):
        path = tmp_path / f"{len(children)}.stack"
        child = Child.start(context, life, (what, path), name=f"test-{what}", stacks=path)
        children.append(child)
        return child

    yield starts
    for child in children:
        child.end()


@pytest.mark.parametrize(("what", "cause"), [("known", "a tooth broke"), ("unknown", "a tooth")])
def test_an_error_comes_with_its_cause_and_traceback(start, what, cause):
    child = start(what)
    assert ready([child], 60.0) == [child]
    ((kind, (error, said, text)),) = list(child.messages())
    assert kind == "error" and cause in said and "Traceback" in text and "in raises" in text
    assert (error.code == "E206") if what == "known" else (error is None and "ValueError" in said)


def test_a_child_without_a_message_is_said_to_have_exited(start):
    child = start("quits")
    assert ready([child], 60.0) == [child] and list(child.messages()) == []
    assert child.exit_cause() == "process exited without an error message (exit code 7)"


def test_all_are_closed_also_those_whose_pipe_is_full_and_those_that_hang(start):
    children = [start(what) for what in ("answers", "talks", "hangs")]
    for child in children:
        assert ready([child], 60.0) == [child]
    time.sleep(0.2)  # the pipe of one is full now
    close_all(children, 2.0)
    assert [c.process.exitcode for c in children] == [0, 0, -signal.SIGKILL]
    assert not any(c.stacks.exists() for c in children), "empty files are removed"


def test_a_child_ignores_signals_and_dumps_its_stack_when_asked(start):
    child = start("hangs")
    assert ready([child], 60.0) == [child]
    child.send(("work", None))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(child.process.pid, number)
    deadline = time.monotonic() + 30
    os.kill(child.process.pid, signal.SIGUSR1)
    while not child.stacks.stat().st_size and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)
    said = hang_cause(3.0, child.stacks, lambda path: path.read_text())
    assert child.process.is_alive() and "no heartbeat for 3 s in " in said
    child.end()
    assert child.stacks.exists(), "a stack that was written is kept"


def test_the_start_of_a_process_leaves_the_dump_of_its_parent_alone(tmp_path):
    """An actor whose environments have workers dumps its stack on a signal that is ignored."""
    old, number = signal.signal(signal.SIGUSR1, signal.SIG_IGN), signal.SIGUSR1
    with open(tmp_path / "stack", "wb", buffering=0) as file:
        faulthandler.register(number, file)
        try:
            with signals_delayed():
                pass
            os.kill(os.getpid(), number)
            assert (tmp_path / "stack").stat().st_size
        finally:
            faulthandler.unregister(number)
            signal.signal(number, old)
