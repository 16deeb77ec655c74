"""Serial environments send heartbeats as they are reset, and as slow steps end."""

import numpy as np
import pytest

from ludus.envs.backends import serial
from ludus.envs.backends.serial import set_heartbeat
from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs


@pytest.fixture
def heard():
    return []


@pytest.fixture
def envs(heard):
    with make_envs(EnvConfig(id="ludus/Counter-v0", num=3, native=False), seed=1) as made:
        set_heartbeat(made.backend, lambda: heard.append(1))
        yield made


def row(envs):
    envs.send(np.zeros(3, np.int64), 0)
    envs.recv(0)


def test_every_reset_sends_a_heartbeat(envs, heard):
    envs.reset(0)
    assert len(heard) == 3


@pytest.mark.parametrize(("seconds", "beats"), [(0.0, 0), (0.06, 3), (0.2, 6)])
def test_only_slow_steps_send_heartbeats(envs, heard, monkeypatch, seconds, beats):
    """Six of them: each that ends a tenth of a second or more after the newest heartbeat."""
    now = [100.0]
    monkeypatch.setattr(serial, "monotonic", lambda: now[0])
    envs.reset(0)
    envs.observe(0)
    heard.clear()

    def slowly(step):
        def stepped(action):
            now[0] += seconds
            return step(action)

        return stepped

    envs.backend._steps = [slowly(step) for step in envs.backend._steps]
    row(envs)
    row(envs)
    assert len(heard) == beats
