"""Import modules that the user named. Only this file adds the current folder to Python's path.

settings/trust.py decides which modules may be imported.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from types import ModuleType

from ludus.errors import LudusError

_SAFE_PATH, _OURS = ("PYTHONSAFEPATH", "ludus")  # any text enables it; this one is ours


def import_named(name: str) -> ModuleType:
    """Import a module that the user named, also from the current folder."""
    search_current_folder()
    return importlib.import_module(name)


def import_modules(names: Iterable[str], where: str = "--import") -> None:
    """Import modules that register algorithms or parts. The current folder is searched last."""
    for name in names:
        try:
            import_named(name)
        except LudusError:
            raise
        except Exception as error:
            raise LudusError(
                "E109",
                f"cannot import {name}: {type(error).__name__}: {error}",
                where=where,
                why="it is not in the current folder or on Python's path, or fails by itself",
                fix=f"cd to the folder that holds it, or  PYTHONPATH=FOLDER ludus ... ; if it has "
                f"moved, --import its new name;  python -c 'import {name}'  shows the traceback",
            ) from error


def search_current_folder() -> None:
    """Append the current folder to Python's path. It comes last, so that no file in it replaces an
    installed module."""
    with suppress(OSError):  # the folder was deleted
        if (here := os.getcwd()) not in sys.path:
            sys.path.append(here)


def of_python(name: str) -> bool:
    """Whether a module belongs to the standard library, which has no environments."""
    return name.partition(".")[0] in sys.stdlib_module_names


@contextmanager
def without_this_folder() -> Iterator[None]:
    """Keep the current folder off the path of processes started inside this block as `python -c`,
    which would search it first."""
    if _SAFE_PATH in os.environ:
        yield
        return
    os.environ[_SAFE_PATH] = _OURS
    try:
        yield
    finally:
        forget_safe_path()


def forget_safe_path() -> None:
    """Remove the variable that `without_this_folder` set, so that processes started by an
    environment do not inherit it."""
    if os.environ.get(_SAFE_PATH) == _OURS:
        del os.environ[_SAFE_PATH]
