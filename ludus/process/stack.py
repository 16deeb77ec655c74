"""Where code hangs: the line of a stack that its author would look at."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

_LUDUS = str(Path(__file__).parents[1])
_PYTHON = sysconfig.get_path("stdlib")
_PACKAGES = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))


class Frame(NamedTuple):
    file: str
    line: int
    name: str


def is_ours(file: str) -> bool:
    return file.startswith(_LUDUS)


def user_line(frames: Sequence[Frame]) -> str:
    """my_env.py:30 in step, of frames with the innermost first: the innermost that is neither
    Python's nor a package's, above our own; else the innermost there is."""
    above = list(takewhile(lambda f: not is_ours(f.file), frames))
    own = [f for f in above if not f.file.startswith((_PYTHON, *_PACKAGES))]
    found = own or above or list(frames)
    return f"{Path(found[0].file).name}:{found[0].line} in {found[0].name}" if found else ""


def stack_of(thread: int) -> tuple[str, str]:
    """(the user's line, the whole stack as text) of a thread of this process."""
    frame = sys._current_frames().get(thread)
    if frame is None:
        return "", ""
    stack = traceback.extract_stack(frame)
    frames = [Frame(f.filename, f.lineno or 0, f.name) for f in reversed(stack)]
    return user_line(frames), "".join(stack.format())
