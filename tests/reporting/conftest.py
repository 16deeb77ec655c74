"""Tiny real runs, made once: two algorithms, two environments, two seeds; and one of a fleet."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ludus.reporting import write_report
from ludus.stats.runs import Run, read_run
from ludus.track.run_dir.rundir import RunDir
from tests.contract.tiny import run, tiny
from tests.reporting import browser
from tests.skips import skip_without

SHORT = ("steps=400", "log.every=60", "eval.every=200", "eval.episodes=2")


@pytest.fixture(scope="session")
def bench(tmp_path_factory) -> Path:
    """A folder as `ludus bench` leaves it; tests may read it, not change it."""
    folder = tmp_path_factory.mktemp("bench")
    for algo in ("dqn", "ppo"):
        for env in ("CartPole-v1", "ludus/Identity-v0"):
            for seed in (1, 2):
                run(tiny(algo, env, *SHORT, f"seed={seed}"), folder)
    (folder / "bench.json").write_text(json.dumps({"cells": []}))
    return folder


@pytest.fixture(scope="session")
def one(bench) -> Path:
    """A lone run that learns from replay."""
    return next(p for p in sorted(bench.iterdir()) if p.name.startswith("CartPole-v1-dqn-s1"))


@pytest.fixture(scope="session")
def fleet(tmp_path_factory) -> Path:
    """A run whose actors have processes of their own: with a queue and a lag."""
    words = ("steps=600", "log.every=100", "fleet=processes", "actors=2", "exact=off")
    return run(tiny("dqn", "CartPole-v1", *words), tmp_path_factory.mktemp("fleet")).path


@pytest.fixture(scope="session")
def page_of_bench(bench, tmp_path_factory) -> Path:
    runs = [p for p in sorted(bench.iterdir()) if p.is_dir()]
    return write_report(runs, tmp_path_factory.mktemp("page") / "bench.html")


@pytest.fixture(scope="session")
def page_of_one(one, tmp_path_factory) -> Path:
    return write_report([one], tmp_path_factory.mktemp("page") / "one.html")


def read_all(path: Path) -> Run:
    return read_run(RunDir(path), history=True)


def embedded(path: Path) -> dict:
    """The data inside a page."""
    text = path.read_text(encoding="utf-8")
    found = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert len(found) == 1
    return json.loads(found[0])


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    program = browser.find()
    skip_without("chromium", program)
    opened = browser.Browser(program, tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()
