"""Write a run's report in a process of its own: `python -m ludus.reporting.live RUN`.

Standard input: how the run's settings differ from its preset, as JSON, so that no algorithm has
to be loaded here.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from ludus.process.child import kill_group_after_parent


def main() -> None:
    if hasattr(os, "nice"):
        os.nice(19)  # training comes first
    kill_group_after_parent(0.0)
    given = json.loads(sys.stdin.buffer.read() or b"{}")
    differences = {path: [(a, b, c) for a, b, c in rows] for path, rows in given.items()}
    from ludus.reporting import write_report

    run = Path(sys.argv[1])
    write_report([run], run / "report.html", differences=differences)


if __name__ == "__main__":
    main()
