"""Signals to the whole group, as Ctrl-C and `timeout` send them, while a fleet starts and works."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from ludus.process.fork_server import signals_delayed
from tests.run.test_faults import wait_for_updates
from tests.started import kept

ROOT = Path(__file__).parents[2]
WORDS = ("steps=100M", "tensorboard=off", "log.every=20", "env.num=1", "actors=2")


def group(tmp_path, algo, fleet):
    process = subprocess.Popen(
        [sys.executable, "-m", "ludus", "train", algo, "CartPole-v1", *WORDS, f"fleet={fleet}",
         "--runs-dir", str(tmp_path), "--run", "it"],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=ROOT, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    return kept(process)


def ended(process, number):
    os.killpg(process.pid, number)
    out, err = process.communicate(timeout=90)
    return out + err


@pytest.mark.parametrize(
    ("algo", "fleet"),
    [pytest.param("a3c", "hogwild", marks=pytest.mark.slow), ("impala", "processes")],
)
def test_an_interrupted_start_is_said_in_one_line(tmp_path, algo, fleet):
    process = group(tmp_path, algo, fleet)
    deadline = time.monotonic() + 90
    while not _server(process.pid):
        time.sleep(0.05)
        assert time.monotonic() < deadline and process.poll() is None
    said = ended(process, signal.SIGINT)
    assert process.returncode == 130
    assert "interrupted" in said and "Traceback" not in said


def _server(pid):
    """The fork server is there, and still importing."""
    children = psutil.Process(pid).children()
    return [c for c in children if "forkserver" in " ".join(c.cmdline())]


def test_an_interrupt_waits_for_the_start_of_a_process():
    """Whichever thread gets it."""
    done = False
    with pytest.raises(KeyboardInterrupt), signals_delayed():
        thread = threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGINT))
        thread.start()
        thread.join()
        time.sleep(0.05)
        done = True
    assert done and signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.slow  # whole runs in processes
@pytest.mark.parametrize(("algo", "fleet"), [("a3c", "hogwild"), ("impala", "processes")])
def test_no_actor_is_replaced_when_all_are_asked_to_exit(tmp_path, algo, fleet):
    process = group(tmp_path, algo, fleet)
    wait_for_updates(process, tmp_path / "it")
    said = ended(process, signal.SIGTERM)
    assert process.returncode == 143
    assert "is replaced" not in said and "terminated at step" in said
