"""Every fault in docs/reliability.md has the test it names, or says that it has none."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
NAME = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if re.match(r"\| \d+ \|", line)
]
NAMED = sorted({found for found in NAME.findall(PAGE)})


def test_the_table_is_the_whole_matrix() -> None:
    assert [int(row[0]) for row in ROWS] == list(range(1, 26))
    assert all(len(row) == 5 and row[1] and row[2] for row in ROWS)
    for number, _, happens, _, proof in ROWS:
        unsupported = happens.startswith("not supported yet")
        assert unsupported == (proof == "none"), f"row {number}"
        assert bool(NAME.search(proof)) != unsupported, f"row {number}"


def test_most_faults_have_a_test() -> None:
    assert sum(bool(NAME.search(row[4])) for row in ROWS) >= 18


@pytest.mark.parametrize(("file", "name"), NAMED, ids=lambda part: part)
def test_the_named_test_is_there(file, name) -> None:
    found = ast.parse((ROOT / file).read_text(encoding="utf-8")).body
    assert name in {node.name for node in found if isinstance(node, ast.FunctionDef)}
