"""`make accept`: which lines of docs/acceptance.md are proven by tests that pass now.

Runs the tests marked `accept`, slow ones too, and rewrites the marks in the document. Not a gate
by itself; with --at-least N it is one.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "acceptance.md"
LINE = re.compile(r"^- \[[ x]\] (?P<number>\d+)\. (?P<text>.+)$")
LINES = 150


class ResultsByLine:
    """Outcomes per line; a line is proven when it has tests and all of them passed."""

    def __init__(self) -> None:
        self.outcomes: dict[int, list[tuple[str, bool]]] = {}
        self.failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        bad = report.failed or report.skipped
        if bad:
            self.failed.add(report.nodeid)
        if report.when == "call" or bad:
            for name, number in report.user_properties:
                if name == "accept":
                    self.outcomes.setdefault(number, []).append((report.nodeid, not bad))

    def proven(self) -> list[int]:
        return sorted(n for n, found in self.outcomes.items() if all(ok for _, ok in found))


def texts() -> dict[int, str]:
    hits = map(LINE.match, DOCUMENT.read_text(encoding="utf-8").splitlines())
    return {int(hit["number"]): hit["text"] for hit in hits if hit}


def mark(proven: list[int]) -> None:
    """Set the boxes in the document."""
    lines = DOCUMENT.read_text(encoding="utf-8").split("\n")
    for i, line in enumerate(lines):
        hit = LINE.match(line)
        if hit:
            box = "x" if int(hit["number"]) in proven else " "
            lines[i] = f"- [{box}] {hit['number']}. {hit['text']}"
    DOCUMENT.write_text("\n".join(lines), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--at-least", type=int, default=0, help="fail below this many")
    parser.add_argument("--keep", action="store_true", help="leave the document alone")
    parser.add_argument("--jobs", default="auto", help="processes; 0 runs in this one")
    parser.add_argument("paths", nargs="*", default=[str(ROOT / "tests")])
    options = parser.parse_args()
    results = ResultsByLine()
    code = pytest.main(
        [
            "-m",
            "accept",
            "-q",
            "--no-header",
            "-n",
            options.jobs,
            f"--rootdir={ROOT}",
            *options.paths,
        ],
        plugins=[results],
    )
    proven, known = results.proven(), texts()
    assert sorted(known) == list(range(1, LINES + 1)), "docs/acceptance.md must have all the lines"
    if not options.keep:
        mark(proven)
    print(f"\nopen ({LINES - len(proven)}):")
    for number in [n for n in known if n not in proven]:
        why = "   <- its test failed" if number in results.outcomes else ""
        print(f"  {number:>3}  {known[number]}{why}")
    print(f"\nproven: {len(proven)} of {LINES}: {', '.join(map(str, proven))}")
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        print(f"{len(results.failed)} test(s) did not pass", file=sys.stderr)
        return 1
    return 0 if len(proven) >= options.at_least else 1


if __name__ == "__main__":
    sys.exit(main())
