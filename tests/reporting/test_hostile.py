"""Names from outside are text on the page, whatever they hold; or they are refused."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser

import pytest

from ludus.errors import LudusError
from ludus.reporting import write_report
from ludus.reporting.html import embed_json
from ludus.track.run_dir.rundir import RunDir, check_name, find_runs
from tests.reporting.conftest import embedded

EVIL = (
    "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
)
ELEMENT = "<b id=owned>'\"&"


@pytest.fixture(scope="module")
def hostile(one, tmp_path_factory):
    """A run whose every name tries to be markup: directory, algorithm, environment, tag, events,
    evaluations, settings, command, video."""
    folder = tmp_path_factory.mktemp("hostile")
    name = "run" + EVIL.replace("/", "\N{FRACTION SLASH}")
    place = folder / name
    shutil.copytree(one, place, symlinks=True)
    config = (place / "config.yaml").read_text()
    config = re.sub(r"id: CartPole-v1", f"id: {json.dumps('../../' + EVIL)}", config)
    config = re.sub(r"name: dqn", f"name: {json.dumps('dqn' + EVIL)}", config)
    config = re.sub(r"tag: .*", f"tag: {json.dumps(ELEMENT + EVIL)}", config)
    (place / "config.yaml").write_text(config)
    manifest = json.loads((place / "manifest.json").read_text())
    manifest |= {"command": ["ludus", EVIL], "protocol": EVIL, "protocol_hash": ELEMENT}
    manifest |= {"lineage": {"preset": EVIL}, "versions": {EVIL: EVIL}, "git": {"commit": EVIL}}
    (place / "manifest.json").write_text(json.dumps(manifest))
    (place / "config.user.yaml").write_text(f"algo: {{{json.dumps(EVIL)}: {json.dumps(EVIL)}}}\n")
    with (place / "events.jsonl").open("a") as file:
        event = {"kind": "failed", "step": 1, "time": "2026-01-01T00:00:00+0000", "error": EVIL}
        file.write(json.dumps(event) + "\n")
    (place / "eval").mkdir()
    found = {"step": 10**9, "mean": 1.0, "scores": [1.0], "protocol": EVIL, "checkpoint": EVIL}
    (place / "eval" / f"{EVIL.replace('/', '_')[:200]}-{10**9}.json").write_text(json.dumps(found))
    (place / "videos").mkdir()
    (place / "videos" / "javascript:alert(1)<b id=owned>.gif").write_bytes(b"GIF89a")
    return place


@pytest.fixture(scope="module")
def page(hostile):
    """Above the run, so that its video is linked."""
    return write_report([hostile], hostile.parent / "page.html", title=f"title {EVIL}{ELEMENT}")


class Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))


def test_no_name_becomes_markup(page, hostile):
    text = page.read_text()
    tags = Elements(text).tags
    assert len([t for t, _ in tags if t == "script"]) == 2, "the data and the page's own"
    assert not any(a.get("id") == "owned" or "onerror" in a for _, a in tags)
    assert [t for t, _ in tags if t == "img"] == ["img"], "the video alone"
    assert "owned" in text, "it is there, as text"
    for _, given in tags:
        for name in ("src", "href"):
            assert not given.get(name, "").lower().startswith("javascript")
        assert not any(name.startswith("on") for name in given)


def test_the_embedded_data_cannot_end_its_element(page, hostile):
    data = embedded(page)  # one element, and JSON to its end
    assert data["scores"][0][0] == hostile.name and EVIL in data["scores"][0][1]
    text = str(embed_json({"a": "</script><!--\u2028&'"}))
    assert not set("<>&'\u2028") & set(text) and json.loads(text) == {"a": "</script><!--\u2028&'"}


def test_a_browser_runs_nothing_of_it(page, chromium):
    before = len(chromium.errors)
    chromium.open(page)
    assert chromium.ask("document.title").startswith("title </script>")
    assert chromium.ask("document.getElementById('owned')") is None
    assert chromium.ask("document.querySelectorAll('script').length") == 2
    assert chromium.errors[before:] == []


@pytest.mark.parametrize("name", ["../up", "a/b", "<b>", "..", "a b", "", ".hidden", "x" * 200])
def test_a_run_cannot_be_called_so(name, tmp_path):
    with pytest.raises(LudusError, match="E103"):
        check_name(name)
    with pytest.raises(LudusError, match="E103"):
        RunDir.create(tmp_path, "CartPole-v1", "dqn", 1, name=name)
    assert list(tmp_path.iterdir()) == []


def test_an_environment_or_algorithm_never_leaves_the_folder(tmp_path):
    place = RunDir.create(tmp_path / "runs", f"../../{EVIL}", f"..{EVIL}", 1).path
    assert place.parent == (tmp_path / "runs").resolve()
    assert not set("<>/\"' ") & set(place.name) and ".." not in place.name


def test_a_report_of_what_is_no_run_is_refused(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "outside").mkdir()
    with pytest.raises(LudusError, match="E303"):
        find_runs(["../outside"], tmp_path / "runs")


def test_places_of_the_machine_are_left_out(one, tmp_path):
    place = tmp_path / "shared"
    shutil.copytree(one, place, symlinks=True)
    manifest = json.loads((place / "manifest.json").read_text())
    words = ["/home/ann lee/.venv/bin/ludus", "train", "dqn", "--runs-dir", "/home/ann lee/r/deep"]
    manifest["command"] = [*words, "log.csv=/home/ann lee/csv", "-c", "~ann/my.yaml", "lr=1e-3"]
    (place / "manifest.json").write_text(json.dumps(manifest))
    text = write_report([place], tmp_path / "page.html").read_text()
    assert "ludus train dqn --runs-dir .../deep log.csv=.../csv -c .../my.yaml lr=1e-3" in text
    assert "ann" not in re.findall(r"\w+", text) and str(tmp_path) not in text


def test_only_reports_below_are_linked(bench, tmp_path):
    """A way through the folders above would name places of the machine, and break when copied."""
    runs = tmp_path / "runs"
    shutil.copytree(bench, runs, symlinks=True)
    paths = [run.path for run in find_runs([runs], runs)]
    for path in paths:
        (path / "report.html").write_text("own")
    for out, most in ((tmp_path / "a.html", len(paths)), (tmp_path / "b" / "b.html", 0)):
        text = write_report(paths, out).read_text()
        assert len(re.findall(r'href="runs/[^"]+/report.html"', text)) == most
        assert "../" not in "".join(re.findall(r'href="([^"]+)"', text))
