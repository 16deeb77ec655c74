"""A script that trains without `if __name__ == "__main__"`. The processes of a run read it from the
top, and would train once more. They leave with an exit code of their own: the run says why."""

from __future__ import annotations

import multiprocessing
import os
import sys

from ludus.errors import LudusError

UNGUARDED = 71  # exit code
CAUSE = "it read the script from the top, which trains without a main guard"


def refuse_import() -> None:
    """Call it before anything is trained or any process is started."""
    process = multiprocessing.current_process()
    if not getattr(process, "_inheriting", False):
        return
    if process.name.startswith("ludus-"):  # the run that started it says so
        os._exit(UNGUARDED)
    raise unguarded("E205", "a program with processes")


def unguarded(code: str, who: str) -> LudusError:
    script = getattr(sys.modules.get("__main__"), "__file__", None) or "the script"
    return LudusError(
        code,
        f"{script} trains without a main guard",
        where=f"the line of {script} that calls ludus.train or the like",
        why=f"{who} starts processes, and each of them reads the script from the top",
        fix="put such calls under  if __name__ == '__main__':",
    )
