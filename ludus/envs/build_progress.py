"""How far the building of many environments is. For whoever waits: on standard error, live on a
terminal and one line elsewhere, and nothing at all if it is quick."""

from __future__ import annotations

import sys
from time import monotonic
from typing import Self, TextIO

PATIENCE = 1.0  # seconds of silence before somebody wonders
REFRESH = 0.1  # between two lines on a terminal


class Building:
    """`done` after each; `expected` seconds announce at once what cannot be announced later."""

    def __init__(
        self,
        what: str,
        total: int,
        *,
        quiet: bool,
        expected: float = 0.0,
        stream: TextIO | None = None,
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        about = f", about {expected:.0f} s" if expected > PATIENCE else ""
        self._text, self._total, self._quiet = f"building {what}{about}", total, quiet
        self._began, self._drawn = monotonic(), -REFRESH
        self._count, self._said = 0, False
        if about:
            self._say()

    def done(self, number: int = 1) -> None:
        self._count += number
        self.tick()

    def tick(self) -> None:
        """Time has passed, and maybe nothing else."""
        late = monotonic() - self._began >= PATIENCE
        if (late or self._said) and self._count < self._total:
            self._say()

    def _say(self) -> None:
        live = self._stream.isatty()
        now = monotonic()
        if self._quiet or (self._said and (not live or now - self._drawn < REFRESH)):
            return
        line = f"{self._text}: {self._count} of {self._total}"
        self._stream.write(f"\r{line}\033[K" if live else f"{line}\n")
        self._stream.flush()
        self._said, self._drawn = True, now

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._said and self._stream.isatty():
            self._stream.write("\r\033[K")  # the panel of the run begins here
            self._stream.flush()
