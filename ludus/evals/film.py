"""Videos of an agent at play, and the window it plays in. Headless but for the window.

ffmpeg comes with the extra `video` (imageio-ffmpeg); frames go to it through a pipe.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ludus.envs.render.viewer import Viewer, check_display
from ludus.errors import LudusError, install_extra
from ludus.evals.agent import Agent
from ludus.evals.caption import Captions
from ludus.evals.episode_stream import Moment, Watched
from ludus.evals.output_names import Played, place_of
from ludus.evals.rules import Rules
from ludus.track.atomic_files import write_json
from ludus.track.run_dir.rundir import folder_for
from ludus.types import EpisodeEnd

Array: TypeAlias = np.ndarray[Any, Any]
# One palette for the whole animation; ffmpeg's own for gif has 256 fixed colours.
_PALETTE = "split[a][b];[a]palettegen=stats_mode=diff[p];[b][p]paletteuse=dither=none"


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
    whole: bool  # False: cut for its length
    weights: str  # a hash
    minutes: float  # of play after which it would be cut

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
    """Each episode in a file `<label>-<step>-<n>.mp4` of `folder`, with a .json of the facts beside
    it; another name where that is of other weights or another seed. After `minutes` of play an
    episode is cut."""
    check_video()
    watched, captions = Watched(agent, rules, seed), Captions()
    ending = "gif" if gif else "mp4"
    try:
        most = max(1, int(minutes * 60 * watched.pace))
        moments = watched.moments()
        for n in range(episodes):
            game = watched.seed_of(n)
            facts = {"seed": game, "minutes": minutes}
            told = f"seed{seed}-{minutes:g}min"
            played = Played(rules.label, agent.path, agent.weights, facts, told)
            path = place_of(played, folder, f"{agent.step}-{n + 1}.{ending}")
            moment, frames, skipped = _film(path, moments, captions, watched.pace, most)
            film = Film(
                path, moment.score, moment.step, frames, watched.pace, game, agent.step,
                moment.ended is not None, agent.weights, minutes,
            )  # fmt: skip
            # By name alone: both may be moved together.
            write_json(path.with_suffix(".json"), {**film.as_dict(), "path": path.name})
            yield film
            while n + 1 < episodes and not skipped:  # to the end of what was cut
                skipped = next(moments).ended is not None
    finally:
        watched.close()


def _film(
    path: Path, moments: Iterator[Moment], captions: Captions, fps: float, most: int
) -> tuple[Moment, int, bool]:
    """One episode, or its first `most` pictures: the last of them, their number, if it is over."""
    moment = next(moments)
    first = captions.frame(moment)
    with VideoFile(path, first, fps) as file:
        file.add(first)
        while moment.ended is None and file.frames < most:
            moment = next(moments)
            file.add(captions.frame(moment))
    return moment, file.frames, moment.ended is not None


class VideoFile:
    """An .mp4 or .gif that is there whole or not at all."""

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
        """The first starts ffmpeg, which may not be there or not run here."""
        try:
            self._pipe.send(frame)
        except (OSError, RuntimeError, StopIteration) as error:
            said = str(error).strip().splitlines()
            raise _refused(self.path, said[-1] if said else type(error).__name__) from error

    def __exit__(self, failed: object, *_: object) -> None:
        with contextlib.suppress(OSError, RuntimeError):  # then it left no file, which is told
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
    """What a Viewer takes for an environment: it shows the newest frame."""

    def __init__(self, pace: float) -> None:
        self.metadata = {"render_fps": pace}
        self.frame: Array = np.zeros((2, 2, 3), np.uint8)

    def render(self) -> Array:
        return self.frame


def play(
    agent: Agent, rules: Rules, *, seed: int, episodes: int = 0, speed: float = 1.0
) -> Iterator[EpisodeEnd]:
    """Show games in a window until it is closed, or so many of them. Tells each that ends."""
    check_display()
    watched, captions = Watched(agent, rules, seed), Captions()
    screen: Any = _Screen(watched.pace * speed)
    viewer, played = Viewer([screen], watched.title), 0
    try:
        for moment in watched.moments():
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
        watched.close()
