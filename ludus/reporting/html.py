"""The page as one file: template, style and script put together, everything from runs escaped.

A content policy in the page forbids what it does not hold itself: nothing is fetched, and no
script runs but its own, should a name ever slip through.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

_PAGE = Path(__file__).parent / "page"


def render(data: dict[str, Any]) -> str:
    # Files of the package.
    style, script = (Markup(_text(name)) for name in ("style.css", "report.js"))  # nosec B704
    policy, embedded = _policy(script), embed_json(data["data"])
    return _template().render(**data, style=style, script=script, policy=policy, embedded=embedded)


def embed_json(value: Any) -> Markup:
    """JSON that may stand inside <script>: no `</script>`, no comment can begin in it."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for char in "<>&'\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)  # nosec B704


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "img-src data: file: 'self'; media-src data: file: 'self'; base-uri 'none'; "
        "form-action 'none'"
    )


@functools.cache
def _text(name: str) -> str:
    return (_PAGE / name).read_text(encoding="utf-8")


@functools.cache
def _template() -> jinja2.Template:
    """Parsed once in a process: a run may write its report many times."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_PAGE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["num"] = number
    environment.filters["fixed"] = lambda v: f"{v:.2f}".replace("-", "−")
    environment.filters["count"] = lambda n: f"{n:,}"
    return environment.get_template("report.html")


def number(value: float | None, digits: int = 4) -> str:
    """As a person writes it: 1,234, 97.3, −0.0512; a dash where there is none."""
    if value is None:
        return "–"
    if abs(value) >= 1000:
        text = f"{value:,.0f}"
    else:
        text = f"{value:.{digits}g}"
        text = f"{float(text):g}" if "e" not in text else text
    return text.replace("-", "−")
