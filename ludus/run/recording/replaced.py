"""Report actors and environments that failed and were replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ludus.types import EpisodeEnd

if TYPE_CHECKING:
    from ludus.run.recording.recorder import Recorder


def report_actor(recorder: Recorder, text: str) -> None:
    if _say(recorder, text):
        recorder.writer.event("actor", recorder.step, what=text)


def report_env(recorder: Recorder, step: int, episode: EpisodeEnd) -> None:
    """The traceback goes to log.txt alone."""
    head, _, trace = episode.error.partition("\n")
    text = f"{head}: made again"
    if _say(recorder, text):
        recorder.writer.event("environment", step, what=text, slot=episode.slot)
        recorder.writer.log(trace)


def _say(recorder: Recorder, text: str) -> bool:
    """Whether the run's files are open; else it is said when they are."""
    if not hasattr(recorder, "writer"):
        recorder.warnings.append(text)
        return False
    recorder.say(f"warning: {text}")
    return True
