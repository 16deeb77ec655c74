"""One Atari game as a scalar gymnasium environment, with the same frames as the native backend.

Slower, but it supports what the native backend does not: RAM, other ways to resize, rendering,
modes and difficulties, wrappers, worker processes, and the rooms visited.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np

from ludus.envs.atari.names import ale_id
from ludus.envs.atari.protocols import FRAMES_PER_SECOND, AtariConfig
from ludus.envs.atari.resize import Resizer
from ludus.errors import LudusError

Array: TypeAlias = np.ndarray[Any, Any]

# RAM address of the player's room number.
ROOM_BYTE = {"montezuma_revenge": 3, "pitfall": 1}
# Emulator arguments that do not conflict with the flags.
ARGS = ("mode", "difficulty", "render_mode")
INSTEAD = {
    "frameskip": "env.atari.skip",
    "repeat_action_probability": "env.atari.sticky",
    "full_action_space": "env.atari.full_actions",
    "max_num_frames_per_episode": "env.atari.max_frames",
    "obs_type": "env.atari.obs  or  env.atari.gray",
}


def quiet_emulator() -> None:
    """Suppress the banner that each emulator prints on standard error."""
    import ale_py

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)


def make_game(game: str, flags: AtariConfig, args: Mapping[str, Any]) -> gym.Env[Any, Any]:
    """The game with its flags applied; `args` may choose a mode, a difficulty or rendering."""
    for name in args:
        if name not in ARGS:
            raise LudusError(
                "E104",
                f"env.args.{name} is not for Atari games",
                where=f"env.args={dict(args)}",
                why=f"the emulator's own arguments here are {', '.join(ARGS)}",
                fix=f"{INSTEAD.get(name, 'env.atari')}=...",
            )
    quiet_emulator()
    env: gym.Env[Any, Any] = gym.make(
        ale_id(game),
        frameskip=1,
        repeat_action_probability=flags.sticky,
        full_action_space=flags.full_actions,
        max_num_frames_per_episode=0,  # none: frames are counted below, after the no-ops
        disable_env_checker=True,
        **args,
    )
    return AtariGame(env, flags, ROOM_BYTE.get(game))


class AtariGame(gym.Wrapper[Any, Any, Any, Any]):
    """Skip, max-pool, resize, no-ops, FIRE, lives and rooms, in the order of the native emulator.

    An action reaches the emulator directly, frame by frame: gymnasium's own step would copy a
    whole screen for each frame.
    """

    def __init__(self, env: gym.Env[Any, Any], flags: AtariConfig, room_byte: int | None) -> None:
        super().__init__(env)
        self._flags, self._room_byte = flags, room_byte
        self._ale: Any = env.unwrapped.ale  # type: ignore[attr-defined]  # an AtariEnv
        full, least = self._ale.getLegalActionSet, self._ale.getMinimalActionSet
        self._actions = list(full() if flags.full_actions else least())
        self._fire = (
            next((a for a in self._actions if a.name == "FIRE"), None) if flags.fire else None
        )
        height, width = self._ale.getScreenDims()
        depth = () if flags.gray else (3,)
        self._resize = Resizer(height, width, flags.size, flags.resize)
        self._screens = [np.zeros((height, width, *depth), np.uint8) for _ in range(2)]
        shape = (flags.size, flags.size, *depth)
        if flags.obs == "ram":
            shape = (int(self._ale.getRAMSize()),)
        self.observation_space = gym.spaces.Box(0, 255, shape, np.uint8)
        self.metadata = {**env.metadata, "render_fps": FRAMES_PER_SECOND / flags.skip}
        self._blank = np.random.default_rng(0)
        self._frames, self._lives = 0, 0
        self._rooms: set[int] = set()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self.env.reset(seed=seed, options=options)
        if seed is not None:
            # A separate stream, so that blank observations do not change the game.
            self._blank = np.random.default_rng([seed, 1])
        ale, waits = self._ale, 0
        if self._flags.noops:
            waits = int(self.env.unwrapped.np_random.integers(0, self._flags.noops + 1))
        if self._fire is not None:
            ale.act(self._fire)
            waits -= 1  # the press is one of them, as in the native emulator
        for _ in range(waits):
            ale.act(self._actions[0])
            if ale.game_over():
                ale.reset_game()
        self._look(0)
        self._screens[1].fill(0)
        self._frames, self._lives, self._rooms = 0, ale.lives(), set()
        self._note_room()
        return self._see(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        ale, flags = self._ale, self._flags
        press, reward, over = self._actions[int(action)], 0.0, False
        for left in range(flags.skip - 1, -1, -1):
            reward += ale.act(press)
            self._frames += 1
            self._note_room()
            over = ale.game_over()
            # Do not read the screen of the frame that ends the game: the final observation comes
            # from the frames before it, as in every implementation we compare with.
            if over or self._frames >= flags.max_frames:
                break
            if left <= 1:
                self._look(left)
        truncated = not over and self._frames >= flags.max_frames
        return self._see(), reward, over, truncated, self._info(over or truncated)

    def _info(self, ended: bool) -> dict[str, Any]:
        """Empty on most steps, because reading it costs the caller time."""
        lives, before = self._ale.lives(), self._lives
        self._lives = lives
        info: dict[str, Any] = {}
        # Some games show 0 lives for a few frames before they end; that is not a life loss.
        if 0 < lives < before and not ended and self._flags.life_loss != "ignore":
            info["soft_terminal"] = True
            info["life_lost"] = self._flags.life_loss == "episodic"
        if ended and self._room_byte is not None:
            info["rooms"] = len(self._rooms)
        return info

    def _note_room(self) -> None:
        if self._room_byte is not None:
            self._rooms.add(int(self._ale.getRAM()[self._room_byte]))

    def _look(self, which: int) -> None:
        if self._flags.obs == "ram":
            return
        if self._flags.gray:
            self._ale.getScreenGrayscale(self._screens[which])
        else:
            self._ale.getScreenRGB(self._screens[which])

    def _see(self) -> Array:
        flags, screens = self._flags, self._screens
        blank = bool(flags.obscure) and self._blank.random() < flags.obscure
        if flags.obs == "ram":
            seen: Array = self._ale.getRAM().copy()
        else:
            if flags.max_pool:
                np.maximum(screens[0], screens[1], out=screens[0])
            seen = self._resize(screens[0])
        return np.zeros_like(seen) if blank else seen
