"""A window that shows environments while they are stepped, all of them side by side.

gymnasium's own mode `human` has one window per process, over which several environments would
fight; here each gives its picture (`rgb_array`) and one window holds them all.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np

from ludus.envs.config import EnvConfig
from ludus.errors import LudusError, env_faults

Array: TypeAlias = np.ndarray[Any, Any]
WIDTH, HEIGHT = 960, 720  # maximum size of the window
USUAL_FPS = 30
SCREENS = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")


def check_display() -> None:
    """Refuse without a display: SDL would draw nothing, without an error."""
    if sys.platform.startswith("linux") and not any(os.environ.get(name) for name in SCREENS):
        raise LudusError(
            "E104",
            "there is no display to show environments on",
            where="env.render, --watch, --render or ludus play",
            why="neither DISPLAY nor WAYLAND_DISPLAY is set: a server, a container, ssh without -X",
            fix="leave it out; watch later where there is a screen:  ludus play RUN , or make a "
            "video here:  ludus record RUN",
        )


def cannot_show(cfg: EnvConfig) -> LudusError:
    return LudusError(
        "E104",
        f"{cfg.id} cannot be shown or filmed: it has no render mode rgb_array",
        where="env.render, --watch, --render, log.screenshots, ludus play or record",
        why="its metadata do not list the mode, or its constructor takes no render_mode",
        fix='env.render=none, or in its class  metadata = {"render_modes": ["rgb_array"]}  '
        "and  render()",
    )


def viewer_of(
    cfg: EnvConfig, envs: Sequence[gym.Env[Any, Any]], first_env: int = 0
) -> Viewer | None:
    """A viewer for the environments that env.render shows; None if there are none."""
    shown = [env for i, env in enumerate(envs, first_env) if cfg.shows(i)]
    return Viewer(shown, cfg.id) if shown else None


class Viewer:
    """Draws at real-time speed. Closing the window stops the drawing, not the run."""

    def __init__(self, envs: Sequence[gym.Env[Any, Any]], title: str) -> None:
        self._envs, self._title = list(envs), title
        self._fps = float(envs[0].metadata.get("render_fps") or USUAL_FPS)
        self._columns = math.ceil(math.sqrt(len(envs)))
        self._rows = -(-len(envs) // self._columns)
        self._window: Any = None
        self._clock: Any = None
        self._cell = (0, 0)
        self.open = True

    def show(self) -> None:
        """Draw the current pictures; wait if the environment is faster than real time."""
        if not self.open:
            return
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # a greeting on standard output
        import pygame

        pictures = [picture_of(env, self._title) for env in self._envs]
        if self._window is None:
            self._begin(*pictures[0].shape[:2])
        for i, picture in enumerate(pictures):
            surface = pygame.surfarray.make_surface(picture.swapaxes(0, 1))
            row, column = divmod(i, self._columns)
            place = (column * self._cell[0], row * self._cell[1])
            self._window.blit(pygame.transform.scale(surface, self._cell), place)
        pygame.display.flip()
        if any(event.type == pygame.QUIT for event in pygame.event.get()):
            self.close()
            return
        self._clock.tick(self._fps)

    def close(self) -> None:
        self.open = False
        if self._window is not None:
            import pygame

            self._window = None
            pygame.display.quit()

    def _begin(self, height: int, width: int) -> None:
        import pygame

        room = min(WIDTH / (self._columns * width), HEIGHT / (self._rows * height))
        scale = max(1, int(room)) if room >= 1 else room  # an integer scale if there is room
        self._cell = (max(1, int(width * scale)), max(1, int(height * scale)))
        pygame.display.init()
        pygame.display.set_caption(self._title)
        size = (self._cell[0] * self._columns, self._cell[1] * self._rows)
        self._window = pygame.display.set_mode(size)
        self._clock = pygame.time.Clock()


@contextmanager
def _without_display() -> Iterator[None]:
    """Use SDL's dummy driver: pygame environments start SDL, which complains on standard error if
    there is no display, though rgb_array needs none."""
    if any(os.environ.get(name) for name in SCREENS):
        yield
        return
    os.environ["SDL_VIDEODRIVER"] = "dummy"
    try:
        yield
    finally:
        del os.environ["SDL_VIDEODRIVER"]


def picture_of(env: gym.Env[Any, Any], title: str) -> Array:
    """Render the environment: [height, width, 3]."""
    try:
        with _without_display():
            picture = env.render()
    except env_faults() as error:
        raise LudusError(
            "E205",
            f"{type(error).__name__} in render(): {error}",
            where=f"environment {title}",
            why="the environment's own code failed",
            fix="correct the environment, or  env.render=none",
        ) from error
    if not isinstance(picture, np.ndarray) or picture.ndim != 3 or picture.shape[2] != 3:
        kind = f"shape {picture.shape}" if isinstance(picture, np.ndarray) else repr(picture)
        raise LudusError(
            "E202",
            f"render() returned {kind:.80}, expected an image [height, width, 3]",
            where=f"environment {title}",
            fix="return an array of uint8 from render(), or  env.render=none",
        )
    return picture
