"""Break proven acceptance lines on purpose: does a test that is marked with the line notice?

    python tools/mutants.py --draw HASH COMMIT        # 25 lines proven at COMMIT, HASH as the seed
    python tools/mutants.py --file F --lines 3 42     # try again; the default is every line in F

F has one JSON object per line: the acceptance line, `what` is broken, the `file`, and the text that
is replaced (`old`, which occurs once, and `new`). Each is applied to a clone of this repository's
HEAD, and the tests marked with its line run there until one fails. `failed` and `commit` are
written back to F. Not part of `make check`: it takes half an hour.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "mutants.jsonl"
MARK = re.compile(r"accept\((\d+)\)")
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.M)
# Selects the tests of one line; pytest's -m does not look at arguments.
PLUGIN = """
import os
def pytest_collection_modifyitems(config, items):
    line = int(os.environ["ACCEPT_LINE"])
    mine = [i for i in items if line in {m.args[0] for m in i.iter_markers("accept")}]
    items[:] = sorted(mine, key=lambda i: i.get_closest_marker("slow") is not None)
"""


def marked(root: Path) -> dict[int, list[str]]:
    """The files with tests of each line."""
    found: dict[int, list[str]] = {}
    for path in sorted((root / "tests").rglob("test_*.py")):
        if path.name == "test_accept.py":  # writes marks into files of its own
            continue
        for number in sorted(set(map(int, MARK.findall(path.read_text(encoding="utf-8"))))):
            found.setdefault(number, []).append(str(path.relative_to(root)))
    return found


def draw(seed: str, commit: str, count: int = 25) -> list[int]:
    """Some of the lines that had tests at `commit`; the seed is a full hash, read as a number."""
    command = ["git", "grep", "-hoE", MARK.pattern.replace("\\d", "[0-9]"), commit, "--",
               "tests/**/test_*.py", ":!tests/test_accept.py"]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    lines = sorted(set(map(int, MARK.findall(done.stdout))))
    return sorted(random.Random(int(seed, 16)).sample(lines, count))


def broken(root: Path, mutant: dict[str, Any]) -> str:
    """The file's text with the mutant in it."""
    text = (root / mutant["file"]).read_text(encoding="utf-8")
    if text.count(mutant["old"]) != 1:
        raise SystemExit(f"line {mutant['line']}: {mutant['file']} has not one {mutant['old']!r}")
    return text.replace(mutant["old"], mutant["new"])


def first_failure(root: Path, line: int, folder: Path) -> tuple[str, str]:
    """The test that failed, "" if none did, and the end of what pytest printed."""
    (folder / "mutant_plugin.py").write_text(PLUGIN, encoding="utf-8")
    env = os.environ | {"ACCEPT_LINE": str(line), "PYTHONPATH": f"{root}:{folder}"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "mutant_plugin", "-p",
               "no:cacheprovider", *marked(root)[line]]  # fmt: skip
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True)
    hit = FAILED.search(done.stdout)
    if done.returncode == 1 and hit:
        return hit[1], done.stdout
    if done.returncode:
        raise SystemExit(f"line {line}: pytest did not run\n{done.stdout}{done.stderr}")
    return "", done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draw", nargs=2, metavar=("HASH", "COMMIT"), help="print which lines")
    parser.add_argument("--file", type=Path, default=RESULTS)
    parser.add_argument("--lines", type=int, nargs="*", default=[], help="only these")
    options = parser.parse_args()
    if options.draw:
        print(*draw(*options.draw))
        return 0
    rows = [json.loads(text) for text in options.file.read_text(encoding="utf-8").splitlines()]
    with tempfile.TemporaryDirectory() as name:
        clone, folder = Path(name) / "clone", Path(name)
        subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
        head = ["git", "rev-parse", "--short", "HEAD"]
        commit = subprocess.run(head, cwd=clone, capture_output=True, text=True).stdout.strip()
        for row in rows:
            if options.lines and row["line"] not in options.lines:
                continue
            (clone / row["file"]).write_text(broken(clone, row), encoding="utf-8")
            row["failed"], said = first_failure(clone, row["line"], folder)
            row["commit"] = commit
            subprocess.run(["git", "checkout", "-q", "."], cwd=clone, check=True)
            print(row["line"], row["failed"] or f"SURVIVED\n{said[-600:]}", flush=True)
            text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            options.file.write_text(text, encoding="utf-8")
    return 0 if all(row.get("failed") for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
