"""The native pools behind the adapter: flags, episode ends, forced resets, groups, equality."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from gymnasium.spaces import Box

from ludus.envs.adapter import split
from ludus.envs.atari.native import Native
from ludus.envs.atari.protocols import AtariConfig
from ludus.envs.backends.serial import allocate
from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs
from ludus.envs.spec import ObsCodec
from ludus.errors import LudusError
from tests.envs.recorder import collect

STILL = {"sticky": 0.0}


@pytest.mark.accept(116)
def test_fire_is_pressed_after_a_reset(pools):
    atari = {**STILL, "noops": 6, "fire": True}
    with make_envs(EnvConfig(id="breakout", num=4, groups=1, atari=atari), seed=1) as envs:
        envs.reset()
        frames = pools[0].answers[0]["episode_frame_number"]
        envs.send(np.zeros(4, int))
        with_ball = envs.recv().obs
    assert frames.min() >= 1 and frames.max() <= 6  # the press is one of the frames
    atari = {**STILL, "fire": False}
    with make_envs(EnvConfig(id="breakout", atari=atari), seed=1) as envs:
        envs.reset()
        envs.send(np.zeros(1, int))
        without = envs.recv().obs
    assert any(not np.array_equal(row, without[0]) for row in with_ball)


def test_raw_score_and_clipped_reward_never_mix():
    """B6, on a game whose rewards are 10 and more."""
    cfg = EnvConfig(id="ms_pacman", reward_clip="sign", atari={**STILL, "max_frames": 600})
    with make_envs(cfg, seed=1) as envs:
        got = collect(envs, 150)
    assert got.raw_reward.max() >= 10 and set(np.unique(got.reward)) == {0.0, 1.0}
    assert np.array_equal(got.reward, np.sign(got.raw_reward))
    (episode,) = got.episodes
    assert episode.score == got.raw_reward.sum() > got.reward.sum()


def test_a_game_that_ends_leaves_a_dummy_row_and_starts_again():
    row = np.random.default_rng(0)
    actions = [[row.integers(4)] for _ in range(184)] + [[17], [1]]
    with make_envs(EnvConfig(id="breakout", protocol="dopamine", atari=STILL), seed=1) as envs:
        got = collect(envs, 186, actions=actions)
    assert np.flatnonzero(got.last[:, 0]).tolist() == [183]
    assert got.discount[183, 0] == 0 and got.discount[:183].all()
    assert got.mask[:, 0].tolist() == [True] * 184 + [False, True]
    assert got.dummy[184, 0] and got.first[185, 0] and got.reward[184, 0] == 0
    assert np.array_equal(got.obs[185], got.obs[0])  # the new game's first frame
    assert not np.array_equal(got.obs[184], got.obs[0])  # the old game's last one
    (episode,) = got.episodes
    assert (episode.length, episode.end) == (184, "terminated")
    assert episode.score == got.raw_reward.sum() > 0


def test_the_cap_on_frames_truncates_inside_a_skip():
    with make_envs(EnvConfig(id="pong", atari={**STILL, "max_frames": 30}), seed=1) as envs:
        got = collect(envs, 12)
    assert np.flatnonzero(got.last[:, 0]).tolist() == [7] and got.discount.all()
    assert [(e.length, e.end) for e in got.episodes] == [(8, "truncated")]
    assert np.array_equal(got.obs[9], got.obs[0]) and got.mask[:, 0].sum() == 11


@pytest.mark.accept(114)
def test_a_stuck_game_is_cut_and_restarted():
    with make_envs(EnvConfig(id="pong", max_stuck=6, atari=STILL), seed=1) as envs:
        got = collect(envs, 16)
    assert np.flatnonzero(got.last[:, 0]).tolist() == [5, 12] and got.discount.all()
    assert {e.end for e in got.episodes} == {"truncated"}
    assert np.array_equal(got.obs[7], got.obs[0]) and got.first[7, 0]
    assert not np.array_equal(got.obs[6], got.obs[0])


def test_a_forced_reset_leaves_other_environments_alone():
    def frames(cut: bool):
        flags = AtariConfig()  # sticky: the neighbour's luck must not be touched either
        arrays = allocate(ObsCodec(Box(0, 255, (84, 84), np.uint8)), 2, 0)
        native = Native("pong", flags, arrays, split(2, 1), threads=1)
        native.reset([5, 6])
        opening, seen = arrays.fresh.pop(0)[0].copy(), []
        for t in range(24):
            native.send(np.array([2, 3]), np.array([cut and t == 9, False]), 0)
            native.recv(0)
            seen.append(arrays.fresh.pop(0)[0])
        native.close()
        return opening, np.stack(seen)

    opening, plain = frames(cut=False)
    _, forced = frames(cut=True)
    assert np.array_equal(plain[:, 1], forced[:, 1])
    assert np.array_equal(plain[:9, 0], forced[:9, 0])
    assert np.array_equal(forced[9, 0], opening[0]) and not np.array_equal(plain[9, 0], opening[0])


def sums(envs, rows: int = 20) -> list[list[int]]:
    """Checksums of every frame [rows][environments], both groups in flight at once."""
    envs.reset()
    found = []
    for t in range(rows):
        for g, part in enumerate(envs.groups):
            envs.send(np.arange(part.start, part.stop) % 2 + 2 + t % 3, g)
        steps = [envs.recv(g) for g in range(len(envs.groups))]
        found.append([zlib.crc32(row.tobytes()) for s in steps for row in s.obs])
    return found


def test_groups_and_threads_change_nothing():
    found = []
    for groups, threads in (("auto", "auto"), (1, 1), (1, 2)):
        cfg = EnvConfig(id="pong", num=2, groups=groups, threads=threads)
        with make_envs(cfg, seed=3) as envs:
            assert len(envs.groups) == (2 if groups == "auto" else 1)
            found.append(sums(envs))
            assert sums(envs) == found[-1]  # a barrier with the same seeds: the same luck again
    assert found[0] == found[1] == found[2]
    assert len({tuple(row) for row in zip(*found[0], strict=True)}) == 2  # environments differ


def test_closing_does_not_wait_for_an_answer():
    envs = make_envs(EnvConfig(id="pong"), seed=1)
    envs.reset()
    envs.send(np.array([0]))
    envs.close()
    assert envs._backend.pools == []


def test_frames_belong_to_whoever_received_them():
    with make_envs(EnvConfig(id="pong", atari=STILL), seed=1) as envs:
        envs.reset()
        held = [envs.observe().obs]
        copies = [held[0].copy()]
        assert np.array_equal(envs.observe().obs, held[0])  # a second look is a copy
        for action in (2, 3, 2):
            envs.send(np.array([action]))
            held.append(envs.recv().obs)
            copies.append(held[-1].copy())
            held[-1][...] = 7
        envs.send(np.array([0]))
        after = envs.recv().obs
    assert np.array_equal(held[0], copies[0]) and after.max() > 7
    assert all((h == 7).all() for h in held[1:])


@pytest.mark.parametrize("bad", [18, -1, 2**31])
def test_an_action_out_of_range_never_reaches_the_emulator(bad, pools):
    with make_envs(EnvConfig(id="pong"), seed=1) as envs:
        envs.reset()
        with pytest.raises(LudusError, match="action") as caught:
            envs.send(np.array([bad]))
        assert caught.value.code == "E204"
        envs.send(np.array([17]))
        assert envs.recv().mask.all() and len(pools[0].answers) == 2


@pytest.mark.accept(120)
def test_blank_frames_are_the_same_on_both_paths():
    blank = []
    for native in (True, False):
        cfg = EnvConfig(id="pong", native=native, atari={**STILL, "obscure": 0.5})
        with make_envs(cfg, seed=2) as envs:
            got = collect(envs, 30)
        blank.append([not frame.any() for frame in got.obs[:, 0]])
    assert blank[0] == blank[1] and 5 < sum(blank[0]) < 26
