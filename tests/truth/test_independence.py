"""A truth that borrowed from what it judges would prove nothing."""

import ast
from pathlib import Path

HERE = Path(__file__).parent
ALLOWED = {"math", "tests.truth.td", "tests.truth.episodes", "ast", "pathlib"}


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


def test_truths_import_nothing_from_the_project():
    files = sorted(HERE.glob("*.py"))
    assert len(files) >= 7
    assert {name for path in files for name in imported(path)} <= ALLOWED


def test_pieces_cut_at_ends_and_drop_dummies():
    from tests.truth.episodes import pieces

    last = [False, True, False, False, False, True]
    mask = [True, True, False, True, True, True]
    assert pieces(last, mask) == [(0, 2), (3, 6)]
    assert pieces([False, False, False], [True, False, True]) == [(0, 1), (2, 3)]
