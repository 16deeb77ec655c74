"""Import modules that a user named. The only place that puts the current folder on Python's path.

Whether a module may be imported is decided elsewhere (trust.py).
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType

_SAFE_PATH, _OURS = "PYTHONSAFEPATH", "ludus"  # any text switches it on; ours is known again


def import_named(name: str) -> ModuleType:
    """A module that the user named, also from the current folder."""
    search_here()
    return importlib.import_module(name)


def search_here() -> None:
    """Search the current folder, where modules of the user's own often are. It comes last: no file
    in it takes the place of an installed module."""
    with suppress(OSError):  # the folder was deleted
        if (here := os.getcwd()) not in sys.path:
            sys.path.append(here)


def of_python(name: str) -> bool:
    """Whether a module is one of Python itself, which has no environments."""
    return name.partition(".")[0] in sys.stdlib_module_names


@contextmanager
def without_this_folder() -> Iterator[None]:
    """For processes that are started as `python -c`, which searches the current folder first for
    every module."""
    if _SAFE_PATH in os.environ:
        yield
        return
    os.environ[_SAFE_PATH] = _OURS
    try:
        yield
    finally:
        forget_safe_path()


def forget_safe_path() -> None:
    """Also in children of such a process: it is not meant for what an environment starts."""
    if os.environ.get(_SAFE_PATH) == _OURS:
        del os.environ[_SAFE_PATH]
