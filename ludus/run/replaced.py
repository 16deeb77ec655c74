"""Report actors and environments that failed and were replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ludus.types import EpisodeEnd

if TYPE_CHECKING:
    from ludus.run.recorder import Recorder


def report_actor(recorder: Recorder, text: str) -> None:
    _report(recorder, "actor", text)


def report_env(recorder: Recorder, step: int, episode: EpisodeEnd) -> None:
    """The traceback goes to log.txt alone."""
    head, _, trace = episode.error.partition("\n")
    if _report(recorder, "environment", f"{head}: made again", slot=episode.slot):
        recorder.writer.log(trace)


def _report(recorder: Recorder, kind: str, text: str, **facts: Any) -> bool:
    """Whether the run's files are open; else it is said when they are."""
    if not hasattr(recorder, "writer"):
        recorder.warnings.append(text)
        return False
    recorder.say(f"warning: {text}")
    recorder.writer.event(kind, recorder.step, what=text, **facts)
    return True
