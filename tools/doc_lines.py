"""Line numbers in the documentation: [`Class.method`](path/file.py#L12) follows the code.

`python tools/doc_lines.py` corrects them in place; a test calls `correct` and wants no change.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\[`(?P<name>[\w.]+)`\]\((?P<path>[^)#\s]+\.py)#L(?P<line>\d+)\)")


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def line_of(path: Path, name: str) -> int:
    """Where `Class.method`, a function, a class or a module's variable begins."""
    nodes: list[ast.stmt] = ast.parse(path.read_text(encoding="utf-8")).body
    found: ast.stmt | None = None
    for part in name.split("."):
        found = next((n for n in nodes if part in _names(n)), None)
        if found is None:
            raise LookupError(f"{path.relative_to(ROOT)} has no {name}")
        nodes = getattr(found, "body", [])
    assert found is not None
    return found.lineno


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else []
    return [t.id for t in targets if isinstance(t, ast.Name)]


def correct(page: Path) -> str:
    """The page's text with every line number right."""

    def put(hit: re.Match[str]) -> str:
        line = line_of((page.parent / hit["path"]).resolve(), hit["name"])
        return f"[`{hit['name']}`]({hit['path']}#L{line})"

    return LINK.sub(put, page.read_text(encoding="utf-8"))


def main() -> int:
    for page in pages():
        page.write_text(correct(page), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
