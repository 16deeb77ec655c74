"""What environments print in processes of their own neither tears the panel nor is lost."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys


def on_a_terminal(*words) -> bytes:
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    process = subprocess.Popen(
        [sys.executable, "-m", "ludus", *map(str, words)],
        stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=env,
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 1 << 16):
            shown += part
    except OSError:  # how Linux says that the other side has closed
        pass
    os.close(ours)
    assert process.wait(60) == 0, shown.decode()
    return shown


def test_what_workers_print_stands_on_lines_of_its_own_above_the_panel(tmp_path):
    words = ("train", "dqn", "tests.fleets.printers:Printer", "steps=400", "env.workers=1",
             "env.num=1", "algo.warmup=50", "log.report=off", "--runs-dir", tmp_path)  # fmt: skip
    shown = on_a_terminal(*words)
    said = re.findall(rb"(.{0,8})NOISE (of \d+|in C)\s*?\n", shown, re.DOTALL)
    assert {what for _, what in said} >= {b"of 0", b"of 40", b"in C"}
    assert b"dqn" in shown and b"\x1b[2K" in shown, "a panel is drawn in place"
    torn = [
        before for before, _ in said if not re.search(rb"(\n|\r|\x1b\[2K|\x1b\[\?25l)$", before)
    ]
    assert not torn, torn
