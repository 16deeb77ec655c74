"""Write report.html during a run: in a separate process, at most once a minute, and once at the
end. Its errors do not affect the run."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from typing import TYPE_CHECKING, Any

from ludus.process.supervisor import start_detached
from ludus.run.loop import Loop
from ludus.settings.resolve import Config
from ludus.track.atomic_files import half_written, open_append, read_json

if TYPE_CHECKING:
    from ludus.run.recording.recorder import Recorder

EVERY = 60.0  # seconds between reports
PATIENCE = 120.0  # seconds after which the writing process is killed


class LiveReport:
    """A context manager around a run and a callback of every iteration. Training waits only for
    the start of the process, some milliseconds per minute. The process runs with nice 19."""

    def __init__(self, cfg: Config, loop: Loop, recorder: Recorder) -> None:
        self.cfg, self.loop, self.recorder = cfg, loop, recorder
        self.path = recorder.path
        self.child: subprocess.Popen[bytes] | None = None
        self.started = time.monotonic()
        self._warned = False
        self._changed: list[tuple[str, str, str]] | None = None

    def __enter__(self) -> LiveReport:
        if self.cfg.log.report:
            self.loop.hooks.tick.append(self._tick)
        return self

    def _tick(self) -> None:
        if time.monotonic() - self.started >= EVERY:
            self._next()

    def __exit__(self, *_: object) -> None:
        if not self.cfg.log.report:
            return
        self._end(self.child)  # it could overwrite the last report with an older one
        # A run that could not start keeps its earlier files, including its report.
        if not self.recorder.opened or not self.recorder.run.metrics.exists():
            return
        try:
            from ludus.reporting import write_report

            write_report([self.path], self.path / "report.html", differences=self._differences())
        except Exception as error:
            self._note(f"report.html was not written: {type(error).__name__}: {error}")

    def _next(self) -> None:
        """Start the next report unless the last one is still being written."""
        try:
            if self.child is not None and self.child.poll() is None:
                if time.monotonic() - self.started < EVERY + PATIENCE:
                    return
                self._end(self.child)
            if self.child is not None and self.child.returncode and not self._warned:
                self._warned = True
                self.recorder.say(f"warning: no report.html:  ludus report {self.path}  says why")
            self.started = time.monotonic()
            self.child = self._start()
        except Exception as error:  # no process or no disk space: training continues
            self._note(f"report.html was not written: {error}")

    def _start(self) -> subprocess.Popen[bytes]:
        child = start_detached("ludus.reporting.live", str(self.path), out=subprocess.DEVNULL)
        assert child.stdin is not None
        os.set_blocking(child.stdin.fileno(), True)  # the child reads all of it at its start
        data = json.dumps(self._differences()).encode()
        with contextlib.suppress(BrokenPipeError), child.stdin as pipe:
            pipe.write(data if len(data) < 60_000 else b"{}")  # the capacity of a pipe
        return child

    def _differences(self) -> dict[str, Any]:
        """Compute once, in this process, where the algorithm's classes are loaded already."""
        if self._changed is None:
            from ludus.reporting.settings import differences

            lineage = read_json(self.recorder.run.manifest).get("lineage")
            preset = lineage.get("preset") if isinstance(lineage, dict) else None
            self._changed = differences(self.cfg.tree(), preset) or []
        return {str(self.path): self._changed}

    def _end(self, child: subprocess.Popen[bytes] | None) -> None:
        if child is not None and child.poll() is None:
            child.kill()
            child.wait()
            half_written(self.path / "report.html", child.pid).unlink(missing_ok=True)

    def _note(self, text: str) -> None:
        """Append a warning to log.txt: the run's writer may be closed, and the disk full."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        line = " ".join(text.split())
        with contextlib.suppress(OSError), open_append(self.recorder.run.log) as log:
            log.write(f"{stamp} warning {line}\n".encode())
