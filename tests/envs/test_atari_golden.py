"""Frames, rewards and ends against a recording of gymnasium's AtariPreprocessing, 8 whole games.

The recording (tools/record_atari_golden.py) was made with OpenCV, which is not needed here.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
import pytest

from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs

GOLDEN = json.loads((Path(__file__).parent.parent / "data" / "atari_golden.json").read_text())
GAMES = GOLDEN["games"]
BY_NAME = {row["game"]: row for row in GAMES}
SAME = {"sticky": 0.0, "full_actions": False}


def play(row, steps: int, **settings):
    """Checksums [steps + 1], rewards {t: r}, and the last EnvStep, for the recorded actions."""
    cfg = EnvConfig(id=row["game"], atari=SAME, max_stuck=None, **settings)
    rng = np.random.default_rng(0)
    with make_envs(cfg, seed=1) as envs:
        envs.reset()
        step = envs.observe()
        sums, rewards = [zlib.crc32(step.obs.tobytes())], {}
        for t in range(steps):
            assert not step.last.any(), f"ended early, before step {t}"
            envs.send(np.array([rng.integers(envs.spec.num_actions)]))
            step = envs.recv()
            sums.append(zlib.crc32(step.obs.tobytes()))
            if step.raw_reward[0]:
                rewards[t] = int(step.raw_reward[0])
    return sums, rewards, step


def check(row, steps: int, **settings) -> None:
    sums, rewards, last = play(row, steps, **settings)
    golden = row["crc32"]
    expected = [int(golden[8 * t : 8 * t + 8], 16) for t in range(steps + 1)]
    wrong = [t for t, (a, b) in enumerate(zip(sums, expected, strict=True)) if a != b]
    assert not wrong, f"{row['game']}: first other frame at step {wrong[0]}, {len(wrong)} in all"
    assert rewards == {t: r for t, r in row["rewards"] if t < steps}
    whole = steps == row["steps"]
    assert bool(last.last[0]) is whole and last.discount[0] == (0 if whole else 1)


def test_the_recording_ends_everywhere_inside_a_skip():
    assert len(GAMES) == 8 and {row["frames"] % 4 for row in GAMES} == {0, 1, 2, 3}


@pytest.mark.accept(110)
@pytest.mark.parametrize("row", GAMES, ids=lambda row: row["game"])
def test_native_frames_are_golden(row):
    check(row, row["steps"])


@pytest.mark.accept(110)
@pytest.mark.parametrize("row", GAMES, ids=lambda row: row["game"])
def test_scalar_frames_are_golden(row):
    # Whole games where they are short; their ends fall on the 1st and 2nd frame of a skip.
    whole = row["game"] in ("ALE/Breakout-v5", "ALE/Qbert-v5")
    check(row, row["steps"] if whole else 60, native=False)


@pytest.mark.accept(110)
@pytest.mark.parametrize(
    "flags",
    [{"skip": 3, "gray": False}, {"max_pool": False, "size": 42}, {"skip": 1}],
    ids=["rgb", "small and unpooled", "every frame"],
)
def test_both_paths_agree_on_other_flags(flags):
    seen = []
    for native in (True, False):
        atari = {"sticky": 0.0, "life_loss": "soft", **flags}
        with make_envs(EnvConfig(id="seaquest", atari=atari, native=native), seed=3) as envs:
            rng = np.random.default_rng(2)
            envs.reset()
            frames = [envs.observe().obs]
            for _ in range(40):
                envs.send(rng.integers(0, 18, 1))
                frames.append(envs.recv().obs)
            assert envs.spec.obs.shape == frames[0].shape[1:]
            seen.append(np.stack(frames))
    assert np.array_equal(*seen) and seen[0].std() > 1
    size = flags.get("size", 84)
    assert seen[0].shape[2:] == ((size, size, 3) if "gray" in flags else (size, size))
