"""Watches a reader: no code from files, no write outside the run, bounded memory and time."""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEMORY = 1 << 30  # bytes of address space that readers may take beyond what there is
SECONDS = 60  # for one case: far more than any takes, on any machine

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = {"os.mkdir": (0,), "os.rename": (0, 1), "os.remove": (0,), "os.rmdir": (0,),
            "os.symlink": (1,), "os.link": (1,), "os.chmod": (0,), "os.truncate": (0,),
            "os.mkfifo": (0,)}  # fmt: skip
_ON_LINKS = ("os.rename", "os.remove", "os.rmdir", "os.symlink", "os.link")
_RUNS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork",
         "os.forkpty", "pty.spawn", "socket.connect", "os.startfile")  # fmt: skip
# What lazy imports of ludus itself and of its messages bring.
_OURS = ("ludus", "encodings", "numpy", "torch", "pydantic", "rich", "jinja2", "difflib", "yaml")


class Forbidden(BaseException):
    """Not an Exception: no reader may catch it."""


class _Watch:
    roots: tuple[str, ...] = ()  # empty: nobody is watched


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if not _Watch.roots:
        return
    if event in _RUNS:
        raise Forbidden(f"{event} {arguments[:2]}")
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITES:
        _inside(event, arguments[0], follows=not arguments[2] & os.O_NOFOLLOW)
    elif event in _CHANGES:
        for place in _CHANGES[event]:
            _inside(event, arguments[place], follows=event not in _ON_LINKS)
    elif event == "import" and not str(arguments[0]).startswith(_OURS):
        raise Forbidden(f"import of {arguments[0]}")


def _inside(event: str, path: object, follows: bool) -> None:
    if isinstance(path, int) or path is None or str(path) == os.devnull:
        return
    text = os.path.join(os.getcwd(), os.fsdecode(path))  # type: ignore[arg-type]
    real = os.path.realpath(text)
    if not follows:  # a link itself is changed or refused, not where it leads
        real = os.path.join(os.path.realpath(os.path.dirname(text)), os.path.basename(text))
    if not real.startswith(_Watch.roots):
        raise Forbidden(f"{event} {real}")


sys.addaudithook(_hook)


@contextmanager
def watched(*roots: Path) -> Iterator[None]:
    def late(number: int, frame: object) -> None:
        raise Forbidden(f"more than {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, late)
    old = signal.setitimer(signal.ITIMER_REAL, SECONDS)
    _Watch.roots = tuple(str(root.resolve()) + os.sep for root in roots)
    try:
        yield
    finally:
        _Watch.roots = ()
        signal.setitimer(signal.ITIMER_REAL, *old)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def bounded_memory() -> Iterator[None]:
    """What asks for more gets a MemoryError, which is no answer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGE_SIZE") + MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
