"""Progress of building many environments, on standard error: live on a terminal, one line
elsewhere, nothing if it is quick."""

from __future__ import annotations

import sys
from time import monotonic
from typing import Self, TextIO

PATIENCE = 1.0  # seconds before progress is printed
REFRESH = 0.1  # seconds between updates on a terminal


class Building:
    """Call `done` after each. If `expected` seconds are long, it prints before the first one."""

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
        self._began, self._last_print = monotonic(), -REFRESH
        self._count, self._printed = 0, False
        if about:
            self._print()

    def done(self, number: int = 1) -> None:
        self._count += number
        self.tick()

    def tick(self) -> None:
        """Print if building takes long. Call it while waiting."""
        late = monotonic() - self._began >= PATIENCE
        if (late or self._printed) and self._count < self._total:
            self._print()

    def _print(self) -> None:
        live = self._stream.isatty()
        now = monotonic()
        if self._quiet or (self._printed and (not live or now - self._last_print < REFRESH)):
            return
        line = f"{self._text}: {self._count} of {self._total}"
        self._stream.write(f"\r{line}\033[K" if live else f"{line}\n")
        self._stream.flush()
        self._printed, self._last_print = True, now

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._printed and self._stream.isatty():
            self._stream.write("\r\033[K")  # clear the line
            self._stream.flush()
