"""The backend on ale-py's AtariVectorEnv: one emulator pool per group, with threads in C++.

A pool returns single frames; the collector stacks them. It restarts finished games itself on the
step after their end, which is the adapter's dummy row. Two pitfalls are avoided: an action out of
range makes it hang forever (ActionChecker refuses those), and its own `episodic_life` would
restart the whole game (this backend tracks lives instead).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from ludus.envs.atari.names import ale_id
from ludus.envs.atari.protocols import AtariConfig
from ludus.envs.backends.serial import EnvArrays
from ludus.envs.build_progress import Building
from ludus.process.limits import available_cores

Array: TypeAlias = np.ndarray[Any, Any]
BUILD_SECONDS = 0.15  # for one emulator, on one core (measured 0.09 to 0.18)


def pool_options(flags: AtariConfig) -> dict[str, Any]:
    """The flags as arguments of AtariVectorEnv; sets every one of them."""
    return {
        "frameskip": flags.skip,
        "maxpool": flags.max_pool,
        "img_height": flags.size,
        "img_width": flags.size,
        "grayscale": flags.gray,
        "stack_num": 1,
        "repeat_action_probability": flags.sticky,
        "full_action_space": flags.full_actions,
        # It samples from 0 to one less than this.
        "noop_max": flags.noops + 1 if flags.noops else 0,
        "use_fire_reset": flags.fire,
        "max_num_frames_per_episode": flags.max_frames,
        "reward_clipping": False,
        "episodic_life": False,
        "life_loss_info": False,
    }


class Native:
    """All environments of one game; `arrays.fresh` has the frames, without a copy."""

    def __init__(
        self,
        game: str,
        flags: AtariConfig,
        arrays: EnvArrays,
        groups: Sequence[slice],
        threads: int | None = None,
        quiet: bool = True,
    ) -> None:
        self.arrays, self.flags = arrays, flags
        self._groups = list(groups)
        self._resets: dict[int, Array] = {}
        self._over = [np.zeros(part.stop - part.start, bool) for part in groups]
        self._lives = [np.zeros(part.stop - part.start, np.int32) for part in groups]
        self._blank: list[np.random.Generator] = []
        self.threads = threads or available_cores()  # of each group; one group is mostly idle
        self.pools = self._build(game, quiet)

    def _build(self, game: str, quiet: bool) -> list[Any]:
        """One pool after the other: loading a ROM holds the interpreter's lock, so building the
        groups in two threads takes as long (measured: 6 emulators each, 1.03 of the time). For the
        same reason nothing can be printed while a pool is being made."""
        from ale_py.vector_env import AtariVectorEnv

        sizes = [part.stop - part.start for part in self._groups]
        total, options, pools = sum(sizes), pool_options(self.flags), []
        what, seconds = f"{total} emulators of {ale_id(game)}", BUILD_SECONDS * total
        with Building(what, total, quiet=quiet, expected=seconds) as building:
            for n in sizes:
                pools.append(AtariVectorEnv(game, n, num_threads=min(n, self.threads), **options))
                building.done(n)
        return pools

    def reset(self, seeds: Sequence[int]) -> None:
        self._resets.clear()
        if self.flags.obscure:
            self._blank = [np.random.default_rng([seed, 1]) for seed in seeds]
        arrays = self.arrays
        for group, (pool, part) in enumerate(zip(self.pools, self._groups, strict=True)):
            obs, info = pool.reset(seed=np.asarray(seeds[part], np.int64))
            arrays.reward[part] = 0.0
            arrays.terminal[part] = arrays.over[part] = False
            self._over[group] = np.zeros(part.stop - part.start, bool)
            if arrays.life is not None:
                arrays.life[part] = False
            self._lives[group] = info["lives"]
            self._show(group, obs)
            arrays.obs[0][part] = arrays.fresh[group][0]  # for a second observe

    def send(self, actions: Array, resets: Array, group: int) -> None:
        # A finished game restarts itself. A game that the adapter ended is stepped with its group
        # and restarted after recv.
        self._resets[group] = resets
        self.pools[group].send(actions)

    def recv(self, group: int) -> None:
        obs, reward, terminated, truncated, info = self.pools[group].recv()
        resets, part, arrays = self._resets.pop(group), self._groups[group], self.arrays
        over, lives = terminated | truncated, info["lives"]
        if b"\x01" in resets.tobytes():
            seeds = arrays.seeds[part][resets]
            # With a seed, also restart a game that has restarted itself.
            seeded = bool(seeds[0] >= 0)
            cut = resets if seeded else resets & ~self._over[group]
            if b"\x01" in cut.tobytes():
                obs, lives = self._restart(group, cut, obs, lives, seeds if seeded else None)
                reward[cut] = 0
                over[cut] = terminated[cut] = False
        if self.flags.life_loss != "ignore":
            lost = self._lost(group, lives, resets | over)
            terminated = terminated | lost
            if arrays.life is not None:
                arrays.life[part] = lost
        arrays.reward[part] = reward
        arrays.terminal[part] = terminated
        arrays.over[part] = self._over[group] = over
        self._show(group, obs)

    def _restart(
        self, group: int, cut: Array, obs: Array, lives: Array, seeds: Array | None
    ) -> tuple[Array, Array]:
        if seeds is not None and self.flags.obscure:
            for env, seed in zip(np.flatnonzero(cut), seeds, strict=True):
                blank = np.random.default_rng([int(seed), 1])
                self._blank[self._groups[group].start + int(env)] = blank
        first, info = self.pools[group].reset(seed=seeds, options={"reset_mask": cut})
        obs[cut], lives[cut] = first[cut], info["lives"][cut]
        return obs, lives

    def _lost(self, group: int, lives: Array, ignored: Array) -> Array:
        """Where a life was lost and the game continues. Some games show 0 lives for a few frames
        before they end; that is not a life loss."""
        lost: Array = (lives < self._lives[group]) & (lives > 0) & ~ignored
        self._lives[group] = lives
        return lost

    def _show(self, group: int, obs: Array) -> None:
        frames = obs[:, 0]
        if self.flags.obscure:
            part = self._groups[group]
            for i, rng in enumerate(self._blank[part]):
                if rng.random() < self.flags.obscure:
                    frames[i] = 0
        self.arrays.fresh[group] = [frames]

    def close(self) -> None:
        self.pools = []  # their threads end with them
