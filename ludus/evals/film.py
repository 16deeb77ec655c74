"""Record videos of an agent, and show it in a window: enlarged pictures with a line of text below.
Only the window needs a display.

ffmpeg comes with the extra `video` (imageio-ffmpeg); frames go to it through a pipe.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ludus.envs.render.viewer import Viewer, check_display
from ludus.errors import LudusError, install_extra
from ludus.evals.agent import Agent
from ludus.evals.episode_stream import EpisodeStream, Moment
from ludus.evals.result import Output, output_path
from ludus.evals.rules import Rules
from ludus.track.atomic_files import write_json
from ludus.track.run_dir.rundir import folder_for
from ludus.types import EpisodeEnd

Array: TypeAlias = np.ndarray[Any, Any]
SMALL = 320  # pixels: pictures lower than this are enlarged
MARGIN = 6
PAPER, INK = (24, 26, 30), (236, 238, 240)
# One palette for the whole animation; ffmpeg's own for gif has 256 fixed colours.
_PALETTE = "split[a][b];[a]palettegen=stats_mode=diff[p];[b][p]paletteuse=dither=none"


def caption_of(moment: Moment) -> str:
    value = "" if moment.value is None else f"   value {moment.value:.2f}"
    ended = "" if moment.ended is None else f"   {moment.ended.end}"
    return f"score {moment.score:g}   step {moment.step}{value}{ended}"


class Captions:
    """Turns moments into frames of one size, both sides even as video codecs want them."""

    def __init__(self) -> None:
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # a greeting on standard output
        import pygame

        pygame.font.init()
        self._pygame = pygame
        self._fonts: dict[int, Any] = {}

    def frame(self, moment: Moment) -> Array:
        picture = np.asarray(moment.picture, np.uint8)
        factor = max(1, -(-SMALL // picture.shape[0]))
        picture = picture.repeat(factor, 0).repeat(factor, 1)
        height, width = picture.shape[0] // 2 * 2, max(2, picture.shape[1] // 2 * 2)
        line = self._line(caption_of(moment), width)
        return np.ascontiguousarray(np.concatenate((picture[:height, :width], line)))

    def _line(self, text: str, width: int) -> Array:
        """[strip, width, 3]; a text that is too long is cut at the right."""
        size = 22 if width >= 440 else 16
        font = self._fonts.setdefault(size, self._pygame.font.Font(None, size))
        strip = np.empty((size + 2 * MARGIN, width, 3), np.uint8)
        strip[:] = PAPER
        letters = self._pygame.surfarray.array3d(font.render(text, True, INK, PAPER)).swapaxes(0, 1)
        letters = letters[: size + MARGIN, : width - MARGIN]
        strip[MARGIN : MARGIN + letters.shape[0], MARGIN : MARGIN + letters.shape[1]] = letters
        return strip


@dataclass(frozen=True)
class Film:
    """One episode in one file."""

    path: Path
    score: float  # up to the last picture
    length: int  # agent steps shown
    frames: int  # pictures
    fps: float
    seed: int
    step: int  # of the checkpoint
    whole: bool  # False: cut after `minutes`
    weights: str  # a hash
    minutes: float  # of play after which it is cut

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "path": str(self.path)}


def video_installed() -> bool:
    return importlib.util.find_spec("imageio_ffmpeg") is not None


def check_video() -> None:
    if not video_installed():
        raise LudusError(
            "E501",
            "videos need ffmpeg, which is not installed",
            why="video is an extra: imageio-ffmpeg brings a program of its own",
            fix=install_extra("video"),
        )


def record(
    agent: Agent,
    rules: Rules,
    folder: Path,
    *,
    seed: int,
    episodes: int = 1,
    gif: bool = False,
    minutes: float = 30.0,
) -> Iterator[Film]:
    """Record each episode as `<label>-<step>-<n>.mp4` in `folder`, with its facts in a .json of the
    same name. A file of other weights or another seed is kept: the name is extended. After
    `minutes` of play an episode is cut."""
    check_video()
    stream, captions = EpisodeStream(agent, rules, seed), Captions()
    ending = "gif" if gif else "mp4"
    try:
        most = max(1, int(minutes * 60 * stream.pace))
        moments = stream.moments()
        for n in range(episodes):
            game = stream.seed_of(n)
            facts = {"seed": game, "minutes": minutes}
            suffix = f"seed{seed}-{minutes:g}min"
            output = Output(rules.label, agent.path, agent.weights, facts, suffix)
            path = output_path(output, folder, f"{agent.step}-{n + 1}.{ending}")
            moment, frames = _film(path, moments, captions, stream.pace, most)
            film = Film(
                path, moment.score, moment.step, frames, stream.pace, game, agent.step,
                moment.ended is not None, agent.weights, minutes,
            )  # fmt: skip
            # By name alone: people move both files together.
            write_json(path.with_suffix(".json"), {**film.as_dict(), "path": path.name})
            yield film
            while n + 1 < episodes and moment.ended is None:  # skip the rest of a cut episode
                moment = next(moments)
    finally:
        stream.close()


def _film(
    path: Path, moments: Iterator[Moment], captions: Captions, fps: float, most: int
) -> tuple[Moment, int]:
    """Film one episode, at most `most` pictures. Return its last moment and their number."""
    moment = next(moments)
    first = captions.frame(moment)
    with VideoFile(path, first, fps) as file:
        file.add(first)
        while moment.ended is None and file.frames < most:
            moment = next(moments)
            file.add(captions.frame(moment))
    return moment, file.frames


class VideoFile:
    """An .mp4 or .gif that appears when it is complete."""

    def __init__(self, path: Path, like: Array, fps: float) -> None:
        import imageio_ffmpeg

        self.path, self.frames = path, 0
        self._part = path.with_name(f".part-{path.name}")
        gif = path.suffix == ".gif"
        try:
            folder_for(path.parent)
            self._part.unlink(missing_ok=True)  # ffmpeg would follow a link
        except OSError as error:
            raise _refused(path, error.strerror or str(error)) from error
        self._pipe = imageio_ffmpeg.write_frames(
            str(self._part),
            (like.shape[1], like.shape[0]),
            fps=fps,
            codec="gif" if gif else "libx264",
            pix_fmt_out="pal8" if gif else "yuv420p",
            macro_block_size=1,
            ffmpeg_log_level="error",
            output_params=["-filter_complex", _PALETTE] if gif else ["-movflags", "+faststart"],
        )

    def __enter__(self) -> VideoFile:
        self._send(None)
        return self

    def add(self, frame: Array) -> None:
        self._send(frame)
        self.frames += 1

    def _send(self, frame: Array | None) -> None:
        """The first call starts ffmpeg, which may be missing or unable to run."""
        try:
            self._pipe.send(frame)
        except (OSError, RuntimeError, StopIteration) as error:
            said = str(error).strip().splitlines()
            raise _refused(self.path, said[-1] if said else type(error).__name__) from error

    def __exit__(self, failed: object, *_: object) -> None:
        with contextlib.suppress(OSError, RuntimeError):  # a missing file is reported below
            self._pipe.close()
        if failed is None and self._part.is_file():
            self._part.replace(self.path)
        else:
            self._part.unlink(missing_ok=True)
        if failed is None and not self.path.is_file():
            raise _refused(self.path, "ffmpeg left no file")


def _refused(path: Path, why: str) -> LudusError:
    return LudusError(
        "E301",
        f"the video {path.name} cannot be written",
        where=str(path),
        why=why,
        fix="free some space, or choose another place with  --out DIR",
    )


class _Screen:
    """Stands in for an environment in a Viewer: renders the newest frame."""

    def __init__(self, pace: float) -> None:
        self.metadata = {"render_fps": pace}
        self.frame: Array = np.zeros((2, 2, 3), np.uint8)

    def render(self) -> Array:
        return self.frame


def play(
    agent: Agent, rules: Rules, *, seed: int, episodes: int = 0, speed: float = 1.0
) -> Iterator[EpisodeEnd]:
    """Show games in a window until it is closed, or `episodes` of them. Yields each that ends."""
    check_display()
    stream, captions = EpisodeStream(agent, rules, seed), Captions()
    screen: Any = _Screen(stream.pace * speed)
    viewer, played = Viewer([screen], stream.title), 0
    try:
        for moment in stream.moments():
            screen.frame = captions.frame(moment)
            viewer.show()
            if not viewer.open:
                return
            if moment.ended is not None:
                played += 1
                yield moment.ended
                if played == episodes:
                    return
    finally:
        viewer.close()
        stream.close()
