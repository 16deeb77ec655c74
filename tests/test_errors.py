"""Every error a user can meet says what to do about it. Read from the source, not from runs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from ludus.errors import CODES

PACKAGE = Path(__file__).parents[1] / "ludus"


def made() -> Iterator[tuple[str, ast.Call]]:
    """Every place that makes a LudusError."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = getattr(node, "func", None)
            if isinstance(node, ast.Call) and ast.unparse(name).endswith("LudusError"):
                if path.name != "errors.py":
                    yield f"{path.relative_to(PACKAGE)}:{node.lineno}", node


def test_every_error_has_a_fix() -> None:
    places = dict(made())
    assert len(places) > 80, "the walk finds the errors"
    bare = []
    for place, call in places.items():
        given = {k.arg: k.value for k in call.keywords}
        fix = given.get("fix")
        if fix is None or (isinstance(fix, ast.Constant) and not fix.value):
            bare.append(place)
    assert bare == []


def test_every_code_is_in_the_table() -> None:
    first = [c.args[0] for _, c in made() if c.args]
    codes = {x.value for x in first if isinstance(x, ast.Constant)}
    assert len(codes) > 15 and codes <= set(CODES)
