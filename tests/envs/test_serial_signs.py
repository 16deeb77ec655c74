"""Slots that reset one after another tell of each."""

from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs
from ludus.envs.serial import hear_resets


def test_every_reset_of_a_slot_is_heard():
    heard = []
    with make_envs(EnvConfig(id="ludus/Counter-v0", num=3, native=False), seed=1) as envs:
        hear_resets(envs.backend, lambda: heard.append(1))
        envs.reset(0)
        assert len(heard) == 3
