"""The documentation is true: its commands run, its tables are complete, its links lead somewhere.

A block after `<!-- run -->` is executed (console: line by line, python: as a script), one after
`<!-- file: NAME -->` is written first; the blocks of one page share a folder.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ludus import registry
from ludus.cli.main import run
from ludus.errors import CODES
from ludus.nets import custom_torso
from ludus.track.metrics.tensorboard import board_tag
from ludus.track.metrics.writer import read_metrics

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(
    r"^<!-- (?P<mark>run|file: (?P<file>\S+)) -->\n```(?P<kind>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def load_tool(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


TOOL = load_tool("doc_lines")
PAGES = TOOL.pages()
RUNNABLE = [page for page in PAGES if BLOCK.search(page.read_text(encoding="utf-8"))]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@dataclass
class Shell:
    """Runs the lines of a console block in this process, as the `ludus` command would."""

    monkeypatch: pytest.MonkeyPatch

    def lines(self, text: str) -> int:
        count = 0
        for line in text.splitlines():
            if line.startswith("$ "):
                self.one(line[2:])
                count += 1
        return count

    def one(self, command: str) -> None:
        words = shlex.split(command, comments=True)
        out, err = io.StringIO(), io.StringIO()
        with self.monkeypatch.context() as patch:
            while "=" in words[0]:
                patch.setenv(*words.pop(0).split("=", 1))
            assert words.pop(0) == "ludus", f"only ludus is run here: {command}"
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = run(words)
        assert code == 0, f"$ {command}\n{out.getvalue()}{err.getvalue()}"
        assert out.getvalue().strip(), f"$ {command} printed nothing"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder to run in, and a process that forgets what was registered and imported there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(registry, "_TABLE", dict(registry._TABLE))
    monkeypatch.setattr(custom_torso, "_CUSTOM", dict(custom_torso._CUSTOM))
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def marked(page: Path) -> Any:
    """Pages with many runs and evaluations are slow."""
    slow = name_of(page) in ("docs/bench.md", "docs/evaluation.md", "docs/record.md")
    return pytest.param(page, id=name_of(page), marks=[pytest.mark.slow] if slow else [])


@pytest.mark.parametrize("page", [marked(page) for page in RUNNABLE])
def test_what_is_marked_runs(page, place, monkeypatch):
    shell, done = Shell(monkeypatch), 0
    for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
        if block["file"]:
            assert "/" not in block["file"]
            (place / block["file"]).write_text(block["text"], encoding="utf-8")
        elif block["kind"] == "console":
            done += shell.lines(block["text"])
        else:
            assert block["kind"] == "python"
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(block["text"], f"{page.name} (block)", "exec"), {"__name__": "block"})
            done += 1
    assert done, "a page with marks runs something"


def test_every_ludus_command_in_a_console_block_is_run():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in re.finditer(r"(?P<before>[^\n]*)\n```console\n", text):
            assert block["before"] == "<!-- run -->", f"{name_of(page)}: a console block is not run"


def test_the_readme_opens_with_the_two_commands():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    first = FENCE.search(text)
    assert first is not None and first[0].splitlines()[1:-1] == ["make train", "make test"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"`?make ([\w-]+)", text))
    assert {"train", "test", "test-slow", "check", "accept", "bench"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"


def test_the_readme_shows_the_measured_curves():
    images = load_tool("readme_images")
    assert len(images.result_rows()) == 4
    assert images.IMAGE.read_text("utf-8") == images.draw(), "python tools/readme_images.py"
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"({images.IMAGE.relative_to(ROOT)})" in text


def test_the_index_links_every_page():
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "README.md" or f"({page.name})" in index, page.name


@pytest.mark.parametrize("entry", registry.BUILT_IN, ids=lambda e: e.name)
def test_every_algorithm_has_a_page(entry):
    page = ROOT / "docs" / "algos" / f"{entry.name}.md"
    text = page.read_text(encoding="utf-8")
    heads = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert heads == ["Equation", "Where", "Settings", "Deviations"]
    for head in heads:
        body = text.split(f"## {head}\n", 1)[1].split("\n## ", 1)[0]
        assert len(body.strip()) > 60, f"{head} says something"
    assert entry.paper.split()[-1][:4] in text, "the paper's year"
    assert TOOL.LINK.search(text), "where the code is"
    assert f"ludus show {entry.name}" in text
    assert f"(docs/algos/{entry.name}.md)" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_setting_of_a_variant_is_named_on_its_page():
    for entry in registry.BUILT_IN:
        text = (ROOT / "docs" / "algos" / f"{entry.name}.md").read_text(encoding="utf-8")
        if entry.name == "rainbow-iqn":  # which builds on this one
            text += (ROOT / "docs" / "algos" / "rainbow.md").read_text(encoding="utf-8")
        for key in entry.variant:
            assert key in text, f"{entry.name}: {key}"


def test_every_error_code_has_a_section():
    text = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^### (E\d+)\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL))
    assert set(sections) == set(CODES)
    for code, body in sections.items():
        assert len(body.split()) > 12 and "`" in body, f"{code}: cause, and what to type"


def test_every_setting_outside_algo_is_in_the_table():
    from ludus.settings.resolve import MODELS

    text = (ROOT / "docs" / "config.md").read_text(encoding="utf-8")
    for section, model in MODELS.items():
        for key in model.model_fields:
            assert f"`{section}.{key}" in text, f"{section}.{key}"


def test_every_metric_of_a_run_is_listed(place):
    listed = set(
        re.findall(r"^\| `([\w/]+)` \|", (ROOT / "docs/metrics.md").read_text("utf-8"), re.M)
    )
    small = ["steps=400", "log.every=100", "eval.episodes=1", "--quiet", "--json"]
    for words in (
        ["dqn", "ludus/Identity-v0", "warmup=100", "batch=8", "replay.kind=prioritized", "--run=a"],
        ["ppo", "ludus/Identity-v0", "rollout=50", "--run=b"],
        ["impala", "ludus/Identity-v0", "batch=1", "--run=c"],
    ):
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            assert run(["train", *words, *small]) == 0
        path = Path(json.loads(out.getvalue())["path"])
        written = {name for line in read_metrics(path / "metrics.jsonl") for name in line}
        assert "learner/loss" in written and "performance/score" in written
        assert written <= listed, written - listed
        shown = {board_tag(name) for name in listed} | listed
        assert board_tags(path / "tb") <= shown, board_tags(path / "tb") - shown


def board_tags(folder: Path) -> set[str]:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    events = [e for f in folder.rglob("events.*") for e in EventFileLoader(str(f)).Load()]
    tags = {value.tag for event in events for value in event.summary.value}
    assert tags, "TensorBoard files were written"
    return tags


def anchors(page: Path) -> set[str]:
    """The fragments a page's headings give, as GitHub makes them."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in heads}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_resolve(page):
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("https://"):
            continue
        path, _, fragment = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{name_of(page)} links to {target}"
        if fragment and there.suffix == ".md":
            assert fragment in anchors(there), f"{name_of(page)} links to {target}"
    assert TOOL.correct(page) == page.read_text(encoding="utf-8"), (
        "line numbers moved: python tools/doc_lines.py"
    )


def test_every_kind_of_event_is_described() -> None:
    files = sorted((ROOT / "ludus").rglob("*.py"))
    written = re.compile(r'(?:\.event|\._replaced)\("([^"]+)"')
    kinds = {k for f in files for k in written.findall(f.read_text("utf-8"))}
    result = (ROOT / "docs/metrics.md").read_text("utf-8").partition("## Events")[2]
    assert {"actor", "live evaluation", "warning"} <= kinds
    assert [kind for kind in sorted(kinds) if f"`{kind}`" not in result] == []


def test_the_answers_to_where_would_you_change_it_exist() -> None:
    text = (ROOT / "tests" / "data" / "where_to_change.md").read_text(encoding="utf-8")
    questions, _, answers = text.partition("## Answers")
    cited = re.findall(r"^\| (\d+) \|.*/issues/\d+\) \|$", questions, re.MULTILINE)
    rows = dict(re.findall(r"^\| (\d+) \| (.+) \|$", answers, re.MULTILINE))
    assert cited == list(rows) == [str(n) for n in range(1, 21)]
    for number, files in rows.items():
        paths = re.findall(r"`(ludus/\S+\.py)`", files)
        assert any((ROOT / path).is_file() for path in paths), f"{number}: {files}"
