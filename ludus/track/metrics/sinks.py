"""Copies of metrics.jsonl: TensorBoard and trackers with one interface."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ludus.track.metrics.tensorboard import Board, Pictures
from ludus.track.metrics.trackers import close_all, open_trackers
from ludus.track.run_dir.rundir import RunDir


class Copies:
    """Write every point to TensorBoard and to all trackers that section `log` of `config` (all
    settings) switches on."""

    def __init__(
        self,
        run: RunDir,
        config: Mapping[str, Any],
        purge_step: int | None,
        say: Callable[[str], None],
    ) -> None:
        log, self._step = config["log"], 0
        self.board = Board(
            run.tb, enabled=log["tensorboard"], tag=log["tag"], purge_step=purge_step
        )
        self.pictures = Pictures(run.screenshots) if log["screenshots"] else None
        self.trackers = open_trackers(run, config, say)

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        self._step = step
        self.board.write(step, values)
        self._show()
        for tracker in self.trackers:
            tracker.write(step, values)

    def close(self, state: str = "finished") -> None:
        """Close all copies. `state`: finished or failed, for the service to show."""
        self._show()
        self.board.close()
        close_all(self.trackers, state)
        self.trackers = []

    def _show(self) -> None:
        """Write the screenshots taken since the last line, at its step."""
        for picture in self.pictures.new() if self.pictures is not None else ():
            self.board.picture(self._step, "performance/terminal_state", picture)
