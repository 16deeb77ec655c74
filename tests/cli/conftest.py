"""Small runs to look at, and the command line called in this process."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from ludus.cli.main import run

# Seconds matter: a run of this size takes a fraction of one.
SMALL = ["steps=240", "algo.warmup=40", "algo.batch=8", "checkpoint_every=120", "tensorboard=off"]


@dataclass
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


def call(*words: str) -> Answer:
    """`ludus WORDS...`"""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run([str(word) for word in words])
    return Answer(code, out.getvalue(), err.getvalue())


def train(runs_dir: Path, *words: str, algo: str = "dqn", env: str = "ludus/Identity-v0") -> Answer:
    return call("train", algo, env, *SMALL, "--runs-dir", runs_dir, "--quiet", "--json", *words)


@pytest.fixture
def runs(tmp_path):
    return tmp_path / "runs"


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Path:
    """A run that ended; tests may read it, not change it."""
    answer = train(tmp_path_factory.mktemp("runs"), "--run", "done")
    assert answer.code == 0, answer.err
    return Path(answer.json["path"])
