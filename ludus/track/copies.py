"""What is written beside the record (metrics.jsonl): TensorBoard and trackers, as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ludus.track.rundir import RunDir
from ludus.track.tensorboard import Board
from ludus.track.trackers import Tracker, close_all, open_trackers


class Copies:
    """Every point goes to all of them."""

    def __init__(self, board: Board, trackers: Sequence[Tracker] = ()) -> None:
        self.board, self.trackers = board, list(trackers)

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        self.board.write(step, values)
        for tracker in self.trackers:
            tracker.write(step, values)

    def close(self, state: str = "finished") -> None:
        """`state`: finished or failed, as the service should show it."""
        self.board.close()
        close_all(self.trackers, state)
        self.trackers = []


def open_copies(
    run: RunDir, config: Mapping[str, Any], purge_step: int | None, say: Callable[[str], None]
) -> Copies:
    """As the section `log` of `config` (a whole tree of settings) asks."""
    log = config["log"]
    board = Board(run.tb, enabled=log["tensorboard"], tag=log["tag"], purge_step=purge_step)
    return Copies(board, open_trackers(run, config, say))
