"""What each protocol means, written out once more: a definition is not tested by itself."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from ludus.envs.atari.protocols import PROTOCOLS
from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs
from tests.envs.recorder import collect


class Meant(NamedTuple):
    skip: int  # frames
    sticky: float
    actions: int  # on Pong, where the least is 6
    noops: int  # frames
    soft: bool  # a lost life is terminal for the learner
    frames: int  # of a game, at 60 a second
    stuck: int | None  # steps without reward


# From the papers; docs/atari.md says which part of them.
MEANT = {
    "saber": Meant(4, 0.25, 18, 0, False, 100 * 3600 * 60, 18_000 // 4),
    "machado": Meant(5, 0.25, 18, 0, False, 18_000, None),
    "dqn-2015": Meant(4, 0.0, 6, 30, True, 18_000, None),
    "dopamine": Meant(4, 0.25, 6, 0, False, 108_000, None),
    "r2d2": Meant(4, 0.0, 18, 30, False, 108_000, None),
}


def test_every_protocol_is_written_out():
    assert MEANT.keys() == PROTOCOLS.keys()


@pytest.mark.accept(111)
@pytest.mark.accept(112)
@pytest.mark.accept(113)
@pytest.mark.accept(116)
@pytest.mark.parametrize("name", MEANT)
def test_flags_read_back_from_a_running_game_are_the_protocols(name, pools):
    """B6. What can be seen is looked at; the rest is what the emulator was told."""
    cfg, meant = EnvConfig(id="pong", protocol=name, num=3, groups=1), MEANT[name]
    with make_envs(cfg, seed=4) as envs:
        right, left = (3, 4) if meant.actions == 18 else (2, 3)
        got = collect(envs, 20, actions=np.tile([right, left], 10)[:, None].repeat(3, 1))
        (pool,) = pools
        frames = np.stack([a["episode_frame_number"] for a in pool.answers])  # [21, 3]
        assert envs.spec.obs.shape == (84, 84) and envs.spec.obs.stack == 4
        assert envs.spec.num_actions == meant.actions
    assert (np.diff(frames, axis=0) == meant.skip).all()
    assert frames[0].max() <= meant.noops and (frames[0].any() == bool(meant.noops))
    # The same actions in three environments: they differ only by chance.
    alike = all(np.array_equal(got.obs[:, 0], got.obs[:, i]) for i in (1, 2))
    assert alike == (meant.sticky == 0 and meant.noops == 0)
    result = pool.options
    assert result["repeat_action_probability"] == meant.sticky
    assert result["max_num_frames_per_episode"] == meant.frames
    assert result["use_fire_reset"] is False and result["maxpool"] is result["grayscale"] is True
    assert result["noop_max"] == (31 if meant.noops else 0)  # it draws from below that
    assert not (result["reward_clipping"] or result["episodic_life"] or result["life_loss_info"])
    assert envs._max_stuck == meant.stuck and cfg.score_facts["protocol"] == name
    assert cfg.atari.obscure == 0 and cfg.reward_clip == "none"


@pytest.mark.accept(112)
@pytest.mark.parametrize("native", [True, False])
def test_both_sets_of_actions_press_what_they_stand_for(native, pools):
    """Pong's least: nothing, fire, right, left, and fire with either."""
    least, all_of_them = [0, 1, 2, 3, 4, 5], [0, 1, 3, 4, 11, 12]
    pressed = np.random.default_rng(0).integers(6, size=60)
    played = []
    for full, names in ((False, least), (True, all_of_them)):
        flags = {"sticky": 0.0, "full_actions": full}
        cfg = EnvConfig(id="pong", protocol="dopamine", atari=flags, native=native)
        with make_envs(cfg, seed=4) as envs:
            assert envs.spec.num_actions == (18 if full else 6)
            # An action that a pool does not have would make it hang.
            assert all(pool.single_action_space.n == (18 if full else 6) for pool in pools[-1:])
            actions = np.asarray(names)[pressed][:, None]
            played.append(collect(envs, 60, actions=actions).obs)
    assert np.array_equal(*played) and len(pools) == (2 if native else 0)
    assert len({frame.tobytes() for frame in played[0]}) > 30, "the picture moves"


@pytest.mark.parametrize("name", MEANT)
def test_a_lost_life_means_what_the_protocol_says(name, pools):
    cfg = EnvConfig(id="breakout", protocol=name, num=4, groups=1)
    with make_envs(cfg, seed=2) as envs:
        got = collect(envs, 120)
    lives = np.stack([a["lives"] for a in pools[0].answers])  # [121, 4]
    lost = (np.diff(lives, axis=0) < 0) & ~got.last
    assert lost.sum() >= 4
    assert (got.discount[lost] == (0.0 if MEANT[name].soft else 1.0)).all()
    assert (got.discount[~lost & ~got.last] == 1.0).all()


@pytest.mark.parametrize(("name", "steps"), [("machado", 3600), ("dqn-2015", 4500)])
def test_a_game_runs_into_its_five_minutes(name, steps):
    """Breakout without a ball goes on for ever; no-ops at its start are not counted."""
    nothing, ended = np.zeros(2, int), []
    with make_envs(EnvConfig(id="breakout", protocol=name, num=2, groups=1), seed=3) as envs:
        envs.reset()
        for t in range(steps + 3):
            envs.send(nothing)
            got = envs.recv()
            if got.last.any():
                ended.append((t, got.last.all(), got.discount.all()))
                episodes = got.episodes
    assert ended == [(steps - 1, True, True)]
    assert [(e.length, e.end) for e in episodes] == [(steps, "truncated")] * 2
