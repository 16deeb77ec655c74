"""Records what gymnasium's AtariPreprocessing shows, for tests/envs/test_atari_golden.py.

Needs OpenCV, which Ludus does not: python -m pip install opencv-python-headless, in an environment
of its own. Usage: python tools/record_atari_golden.py
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import ale_py
import gymnasium as gym
import numpy as np
from gymnasium.wrappers import AtariPreprocessing

GAMES = "Asteroids Breakout MontezumaRevenge MsPacman Pong Qbert Seaquest SpaceInvaders".split()
PATH = Path(__file__).parent.parent / "tests" / "data" / "atari_golden.json"


def record(game: str) -> dict[str, object]:
    """One whole game of random actions, without stickiness, no-ops and FIRE."""
    raw = gym.make(f"ALE/{game}-v5", frameskip=1, repeat_action_probability=0.0)
    env = AtariPreprocessing(raw, noop_max=0)
    rng = np.random.default_rng(0)
    obs, _ = env.reset(seed=1)
    sums, rewards, over = [zlib.crc32(obs.tobytes())], [], False
    while not over:
        action = int(rng.integers(env.action_space.n))
        obs, reward, over, truncated, info = env.step(action)
        assert not truncated
        sums.append(zlib.crc32(obs.tobytes()))
        rewards.append(int(reward))
    return {
        "game": f"ALE/{game}-v5",
        "actions": int(env.action_space.n),
        "frames": int(info["episode_frame_number"]),
        "rewards": [[t, r] for t, r in enumerate(rewards) if r],
        "steps": len(rewards),
        "crc32": "".join(f"{value:08x}" for value in sums),
    }


if __name__ == "__main__":
    import cv2

    made = {"ale-py": ale_py.__version__, "gymnasium": gym.__version__, "opencv": cv2.__version__}
    rows = [record(game) for game in GAMES]
    PATH.write_text(json.dumps({"made with": made, "games": rows}, indent=1) + "\n")
    for row in rows:
        print(row["game"], row["steps"], "steps, last skip of", int(row["frames"]) % 4 or 4)
