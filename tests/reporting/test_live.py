"""report.html while training: by a process of its own, never at the run's expense."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from ludus.run.recording import live_report
from ludus.track.callbacks import Callback
from tests.contract.tiny import run, tiny
from tests.reporting.conftest import read_all

SHORT = ("steps=300", "log.every=50", "checkpoint_every=100")


class Watcher(Callback):
    """Waits, once, until a report is there while the run goes on."""

    def __init__(self):
        self.seen = ""

    def on_episode(self, run, episode):
        page = run.path / "report.html"
        until = time.monotonic() + 60
        while not self.seen and run.step > 150 and time.monotonic() < until:
            if page.exists():
                self.seen = page.read_text()
            else:
                time.sleep(0.05)


@pytest.mark.accept(134)
def test_a_report_is_written_while_the_run_goes_on_and_at_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(live_report, "EVERY", 0.0)
    watcher = Watcher()
    path = run(tiny("dqn", "CartPole-v1", *SHORT), tmp_path, callbacks=[watcher]).path
    assert "while training goes on" in watcher.seen and "run.steps" in watcher.seen
    last = (path / "report.html").read_text()
    assert "while training goes on" not in last and "finished, 100 %" in last
    lines = (path / "log.txt").read_text().splitlines()
    assert not [line for line in lines if "warning" in line and "report" in line]
    assert not list(path.glob(".report.html*")), "nothing half-written is left"


def test_one_that_is_killed_while_writing_leaves_nothing(tmp_path):
    live = object.__new__(live_report.LiveReport)
    live.path = tmp_path
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    half = tmp_path / f".report.html.{child.pid}.tmp"
    half.write_text("<html>")
    live._end(child)
    assert child.poll() is not None and not half.exists()


def test_it_can_be_switched_off(tmp_path, monkeypatch):
    monkeypatch.setattr(live_report, "EVERY", 0.0)
    path = run(tiny("dqn", "CartPole-v1", *SHORT, "log.report=off"), tmp_path).path
    assert not (path / "report.html").exists()


def test_a_report_that_fails_does_not_hurt_the_run(tmp_path, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("no report today")

    import ludus.reporting

    monkeypatch.setattr(live_report, "EVERY", 0.0)
    monkeypatch.setattr(ludus.reporting, "write_report", broken)
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    result = run(tiny("dqn", "CartPole-v1", *SHORT), tmp_path)
    assert (result.reason, result.exit_code) == ("finished", 0)
    log = (result.path / "log.txt").read_text()
    assert "no report today" in log and "report.html was not written" in log
    assert read_all(result.path).state == "finished"


def test_a_process_that_hangs_is_ended_with_the_run(tmp_path, monkeypatch):
    started = []

    def hang(self):
        started.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]))
        return started[-1]

    monkeypatch.setattr(live_report, "EVERY", 0.0)
    monkeypatch.setattr(live_report.LiveReport, "_start", hang)
    result = run(tiny("dqn", "CartPole-v1", *SHORT), tmp_path)
    assert len(started) == 1, "never two at once"
    assert started[0].poll() is not None and result.exit_code == 0
    assert "finished" in (result.path / "report.html").read_text()


def test_a_failed_run_has_a_report_that_says_so(tmp_path):
    class Broken(Callback):
        def on_checkpoint(self, run, path):
            raise RuntimeError("the dog ate it")

    with pytest.raises(Exception, match="the dog ate it"):
        run(tiny("dqn", "CartPole-v1", *SHORT), tmp_path, callbacks=[Broken()])
    (path,) = tmp_path.iterdir()
    text = (path / "report.html").read_text()
    assert "the dog ate it" in text and "Failed before the end" in text


def test_the_report_process_of_a_run_loads_no_torch(one):
    code = (
        "import sys, json\n"
        "sys.argv = ['live', sys.argv[1]]\n"
        "from ludus.reporting import live\n"
        "live.main()\n"
        "assert 'torch' not in sys.modules, 'a report would cost seconds'\n"
    )
    assert "<code>algo.lr</code>" not in (one / "report.html").read_text()
    given = json.dumps({str(one): [["algo.lr", "1", "2"]]})
    done = subprocess.run(
        [sys.executable, "-c", code, str(one)], input=given, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "<code>algo.lr</code>" in (one / "report.html").read_text()
