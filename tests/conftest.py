"""What every test gets: one torch thread, no LUDUS_* variables, and its acceptance numbers."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from tests import skips
from tests.started import end_started

ROOT = Path(__file__).parent.parent

# Hypothesis fails an example that took longer than 200 ms. On a busy machine any of them may, and
# none of them is about time. Every run of the tests repeats the same examples, so that a change
# fails for its own faults; `FUZZ=new make test-slow` looks for new ones.
settings.register_profile("ludus", deadline=None, derandomize=os.environ.get("FUZZ") != "new")
settings.load_profile("ludus")


def pytest_configure(config):
    torch.set_num_threads(1)
    # A shell ignores Ctrl-C for what it starts in the background, and `nohup` ignores the loss of
    # the terminal. Children would inherit that: a signal that a test sends to a program before it
    # has a handler would then be lost.
    for number, usual in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)


def pytest_collection_modifyitems(items):
    """`accept` marks travel in the reports, so that tools/accept.py also works across processes."""
    for item in items:
        for mark in item.iter_markers("accept"):
            for number in mark.args:
                assert isinstance(number, int) and 1 <= number <= 150, f"{item.nodeid}: {number}"
                item.user_properties.append(("accept", number))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Many tests play a game; where ale-py was left out, they are skipped and not failures."""
    report = yield
    if report.failed and call.excinfo is not None and skips.lacks_emulator(call.excinfo.value):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), item.location[1], skips.REASONS["atari"])
    return report


def _skipped(config):
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    return skips.reasons(reporter.stats.get("skipped", []) if reporter else [])


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    """Where all that tests need is installed, a skipped test is one that nobody runs."""
    allowed, here = os.environ.get("SKIPS_ALLOWED"), not hasattr(session.config, "workerinput")
    if allowed and here and skips.refused(_skipped(session.config), allowed):
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter, config):
    """The last lines say what was skipped and why; pytest's own list has a line for each place."""
    yield
    found, allowed = _skipped(config), os.environ.get("SKIPS_ALLOWED")
    for line in skips.lines(found):
        terminalreporter.write_line(line)
    for reason in skips.refused(found, allowed) if allowed else []:
        terminalreporter.write_line(f"FAILED: SKIPS_ALLOWED={allowed} and a test skipped: {reason}")


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch):
    for name in [n for n in os.environ if n.startswith("LUDUS_")]:
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def _no_process_left_behind():
    yield
    end_started()


@pytest.fixture
def root() -> Path:
    """The project's folder."""
    return ROOT
