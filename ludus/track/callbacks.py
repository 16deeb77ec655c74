"""Hooks for user code: observe a run, add metrics, stop it. They do not change the training.

A callback that raises ends the run with E402; log.txt has its traceback.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ludus.errors import LudusError

if TYPE_CHECKING:
    from ludus.types import EpisodeEnd


class RunView(Protocol):
    """The run as a callback sees it."""

    @property
    def step(self) -> int: ...

    @property
    def updates(self) -> int: ...

    @property
    def path(self) -> Path: ...

    def stop(self, reason: str) -> None: ...

    def log(self, values: Mapping[str, float]) -> None: ...


class Callback:
    """Base class; override the methods you need."""

    def on_start(self, run: RunView) -> None:
        """Before the first step of this session; run.step > 0 after a resume."""

    def on_episode(self, run: RunView, episode: EpisodeEnd) -> None:
        """An episode ended. `episode.whole` is False if it was cut and has no valid score."""

    def on_update(self, run: RunView, metrics: Mapping[str, Any]) -> Mapping[str, float] | None:
        """After every optimizer step. `metrics` holds the loss, the gradient norm and the metrics
        of the algorithm as 0-d tensors; float(x) reads one and waits for an accelerator.
        The next line of metrics.jsonl includes the result. Costs nothing unless overridden."""
        return None

    def on_checkpoint(self, run: RunView, path: Path) -> None:
        """A checkpoint is complete in `path`."""

    def on_end(self, run: RunView) -> None:
        """The run is over, also after an interrupt."""

    def state(self) -> dict[str, Any]:
        """Return the state to save in the checkpoint, as JSON."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`."""


class StopAt(Callback):
    """Stop once the mean raw score of the last `window` whole episodes reaches `return_`."""

    def __init__(self, return_: float, window: int = 100) -> None:
        if window < 1:
            raise LudusError(
                "E103",
                f"StopAt(window={window}): a window has at least one episode",
                where="StopAt",
                fix="StopAt(return_, window=100), or any other window of 1 or more",
            )
        self.return_, self.window = return_, window
        self._scores: deque[float] = deque(maxlen=window)

    def on_episode(self, run: RunView, episode: EpisodeEnd) -> None:
        if not episode.whole:
            return
        self._scores.append(episode.score)
        mean = sum(self._scores) / len(self._scores)
        if len(self._scores) == self.window and mean >= self.return_:
            run.stop(f"mean score {mean:.4g} of {self.window} episodes reached {self.return_:.4g}")

    def state(self) -> dict[str, Any]:
        return {"scores": list(self._scores)}

    def load(self, state: Mapping[str, Any]) -> None:
        self._scores.extend(state.get("scores", ()))


class Callbacks(Callback):
    """Several callbacks as one, in order."""

    def __init__(self, members: Sequence[Callback] = ()) -> None:
        self.members = list(members)

    def _call(self, hook: str, *args: Any) -> list[Any]:
        return [_guard(member, hook, *args) for member in self.members]

    def on_start(self, run: RunView) -> None:
        self._call("on_start", run)

    def on_episode(self, run: RunView, episode: EpisodeEnd) -> None:
        self._call("on_episode", run, episode)

    def on_update(self, run: RunView, metrics: Mapping[str, Any]) -> dict[str, float]:
        """Return the metrics that all members add. Each member sees those of earlier members."""
        added: dict[str, float] = {}
        for member in self.members:
            seen = {**metrics, **added}
            added.update(_guard(member, "on_update", run, seen) or {})
        return added

    def on_checkpoint(self, run: RunView, path: Path) -> None:
        self._call("on_checkpoint", run, path)

    def on_end(self, run: RunView) -> None:
        self._call("on_end", run)

    def state(self) -> dict[str, Any]:
        return dict(zip(self._names(), self._call("state"), strict=True))

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore each member. A member that is new or has another position starts afresh."""
        for name, member in zip(self._names(), self.members, strict=True):
            if state.get(name) is not None:
                _guard(member, "load", state[name])

    def _names(self) -> list[str]:
        return [f"{i}:{type(member).__name__}" for i, member in enumerate(self.members)]


def _guard(member: Callback, hook: str, *args: Any) -> Any:
    try:
        return getattr(member, hook)(*args)
    except LudusError:
        raise
    except Exception as error:
        raise LudusError(
            "E402",
            f"callback {type(member).__name__}.{hook} raised {type(error).__name__}: {error}",
            where=f"{type(member).__module__}.{type(member).__qualname__}",
            fix="the traceback is in log.txt; --debug prints it",
        ) from error
