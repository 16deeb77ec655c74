"""While many environments are built: said if it takes its time, and never if quiet."""

from __future__ import annotations

import io

import numpy as np
import pytest
from gymnasium.spaces import Box

import ludus
from ludus.envs import make as making
from ludus.envs.adapter import split
from ludus.envs.atari.native import Native
from ludus.envs.atari.protocols import AtariConfig
from ludus.envs.backends.serial import allocate
from ludus.envs.build_progress import Building
from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs
from ludus.envs.spec import ObsCodec
from tests.cli.conftest import call
from tests.skips import REASONS

vector_env = pytest.importorskip("ale_py.vector_env", reason=REASONS["atari"])


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("ludus.envs.build_progress.monotonic", lambda: now[0])
    return now


def build(stream, clock, *, quiet=False, seconds=0.5, total=10, expected=0.0):
    with Building("carts", total, quiet=quiet, expected=expected, stream=stream) as building:
        for _ in range(total):
            clock[0] += seconds
            building.done()
    return stream.getvalue()


def test_a_terminal_counts_on_one_line_and_is_left_clean(clock):
    result = build(Terminal(), clock)
    assert "building carts: 2 of 10" in result and "building carts: 9 of 10" in result
    assert "1 of 10" not in result  # not before a second has passed
    assert "\n" not in result and result.endswith("\r\033[K")


def test_a_pipe_gets_one_line(clock):
    assert build(io.StringIO(), clock) == "building carts: 2 of 10\n"


def test_what_is_quick_or_quiet_says_nothing(clock):
    for stream in (io.StringIO(), Terminal()):
        assert build(stream, clock, seconds=0.05) == ""
        assert build(stream, clock, quiet=True, expected=60.0) == ""


def test_what_will_take_long_is_announced_at_once(clock):
    """While an emulator is made nothing can be printed: before it, then."""
    assert build(io.StringIO(), clock, expected=7.5) == "building carts, about 8 s: 0 of 10\n"


@pytest.mark.parametrize("quiet", [False, True])
def test_pools_of_emulators_are_counted(monkeypatch, capsys, quiet):
    class Instant:
        def __init__(self, game, num, **options):
            self.num = num

    monkeypatch.setattr(vector_env, "AtariVectorEnv", Instant)
    arrays = allocate(ObsCodec(Box(0, 255, (84, 84), np.uint8)), 64, 0)
    native = Native("pong", AtariConfig(), arrays, split(64, 2), quiet=quiet)
    result = capsys.readouterr().err
    line = "building 64 emulators of ALE/Pong-v5, about 10 s: 0 of 64\n"
    assert result == ("" if quiet else line)
    assert [pool.num for pool in native.pools] == [32, 32]
    Native("pong", AtariConfig(), arrays, split(4, 2), quiet=quiet)
    assert capsys.readouterr().err == ""


@pytest.fixture
def slow(monkeypatch, clock):
    """Environments that take more than half as long to make as somebody's patience is."""
    plain = making.make_one

    def make_one(cfg, **how):
        clock[0] += 0.55
        return plain(cfg, **how)

    monkeypatch.setattr(making, "make_one", make_one)


def test_slow_environments_are_counted(slow, capsys):
    cfg = EnvConfig(id="ludus/Counter-v0", num=4)
    make_envs(cfg, seed=1, quiet=False).close()
    assert capsys.readouterr().err == "building 4 environments of ludus/Counter-v0: 2 of 4\n"
    make_envs(cfg, seed=1).close()
    assert capsys.readouterr().err == ""


def test_progress_is_shown_unless_the_run_is_quiet(slow, tmp_path, capsys):
    small = {"steps": 8, "warmup": 4, "algo.batch": 2, "env.num": 3, "log.tensorboard": False}
    cfg = ludus.config("dqn", "ludus/Identity-v0", **small)
    for quiet in (True, False):
        ludus.train(cfg, runs_dir=tmp_path, run="x", fresh=True, quiet=quiet)
        assert ("building 3 environments" in capsys.readouterr().err) is not quiet
    words = [f"{key}={str(value).lower()}" for key, value in small.items()]
    assert "building" in call("eval", tmp_path / "x", "--episodes", "3").err
    for more, result in ((["-q"], False), ([], True), (["log.terminal=off"], False)):
        answer = call("train", "dqn", "ludus/Identity-v0", *words, "--runs-dir", tmp_path, *more)
        assert answer.code == 0 and ("building 3" in answer.err) is result
        assert "building" not in answer.out


def test_slow_workers_are_counted(module_of, capsys, monkeypatch):
    monkeypatch.setattr("ludus.envs.build_progress.PATIENCE", 0.2)
    monkeypatch.setattr("ludus.envs.backends.workers.PATIENCE", 0.1)
    name = module_of(
        """
        import time
        from ludus.envs.test_envs import Counter
        def make():
            time.sleep(0.2)
            return Counter()
        """
    )
    cfg = EnvConfig(id=f"{name}:make", num=4, workers=2)
    make_envs(cfg, seed=1, quiet=False).close()
    result = capsys.readouterr().err
    assert (
        result.startswith(f"building 4 environments of {name}:make: ") and result.count("\n") == 1
    )
