"""The page in a real browser with the network off: it renders, answers, and is quiet."""

from __future__ import annotations

import base64
import csv
import io
import itertools
import struct
import time
import unicodedata

import pytest

from ludus.reporting import write_report
from tests.reporting import pdf
from tests.reporting.conftest import embedded, read_all
from tests.stats.made import made_run


@pytest.fixture
def shown(chromium):
    """Opens a page at a size; afterwards there must be no error and no address outside."""
    errors, asked = len(chromium.errors), len(chromium.asked)

    def show(path, width=1280, height=900):
        chromium.size(width, height)
        chromium.open(path)
        return chromium

    yield show
    assert chromium.errors[errors:] == []
    assert {url.partition(":")[0] for url in chromium.asked[asked:]} <= {"file", "data", "blob"}


def colours(browser) -> tuple[str, str]:
    return tuple(
        browser.ask("[getComputedStyle(document.body).backgroundColor,"
                    " getComputedStyle(document.body).color]")
    )  # fmt: skip


def brightness(colour: str) -> float:
    return sum(map(float, colour.removeprefix("rgb(").removesuffix(")").split(",")))


def test_pointing_at_a_curve_shows_its_facts(shown, page_of_one, one):
    browser, run = shown(page_of_one), read_all(one)
    assert browser.ask("document.querySelectorAll('.facts').length") == 0
    left, top, width, height = browser.place("[data-chart=env0] .plot")
    browser.point(left + 0.97 * width, top + 0.6 * height)
    result = browser.ask("document.querySelector('.facts').innerText")
    assert "step" in result and "frames" in result and f"seed {run.seed}" in result
    assert "min" in result and "max" in result and "±" in result and "episodes" in result
    browser.point(left + 0.4 * width, top - 200)
    assert browser.ask("document.querySelectorAll('.facts, .cross, .spot').length") == 0


def test_several_runs_their_legend_and_the_other_view(shown, page_of_bench):
    browser = shown(page_of_bench)
    left, top, width, height = browser.place("[data-chart=env0] .plot")
    browser.point(left + 0.9 * width, top + 0.5 * height)
    result = browser.ask("document.querySelector('.facts').innerText")
    assert "dqn · 2 seeds" in result and "ppo · 2 seeds" in result

    def visible():
        return browser.ask(
            "[...document.querySelectorAll('[data-chart=env0] g.line')]"
            ".filter(g => getComputedStyle(g).display !== 'none').length"
        )

    assert visible() == 6  # two means, four seeds
    left, top, width, height = browser.place("[data-chart=env0] .key[data-name=ppo]")
    browser.click(left + width / 2, top + height / 2)
    assert visible() == 3
    shown_charts = "[...document.querySelectorAll('#learning .chart')].filter(c => c.offsetHeight)"
    assert browser.ask(f"{shown_charts}.map(c => c.dataset.chart)") == ["env0", "env1"]
    left, top, width, height = browser.place("[data-view=evaluation]")
    browser.click(left + width / 2, top + height / 2)
    assert browser.ask(f"{shown_charts}.map(c => c.dataset.chart)") == ["eval0", "eval1"]


def test_a_profile_says_what_its_interval_is_of(shown, page_of_bench):
    browser = shown(page_of_bench)
    left, top, width, height = browser.place("[data-chart=profile] .plot")
    browser.point(left + 0.5 * width, top + 0.5 * height)
    result = browser.ask("document.querySelector('.facts').innerText")
    assert "τ = " in result and "95 % interval of the share" in result


def test_keys_move_along_a_curve(shown, page_of_one):
    browser = shown(page_of_one)
    browser.ask("document.querySelector('[data-chart=env0] .plot').focus()")
    for _ in range(60):
        browser.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight")
    assert "step" in browser.ask("document.querySelector('.facts').innerText")


def test_light_and_dark_by_the_machine_and_by_the_button(shown, page_of_one):
    browser = shown(page_of_one)
    browser.scheme("light")
    paper, ink = map(brightness, colours(browser))
    assert paper > 600 > 200 > ink
    browser.scheme("dark")
    paper, ink = map(brightness, colours(browser))
    assert paper < 200 < 500 < ink
    left, top, width, height = browser.place("[data-theme-toggle]")
    browser.click(left + width / 2, top + height / 2)
    assert brightness(colours(browser)[0]) > 600, "the button beats the machine"
    browser.ask("localStorage.clear()")
    browser.scheme("light")


def test_narrow_screens_have_no_sideways_scrolling(shown, page_of_bench, page_of_one, tmp_path):
    for page in (page_of_bench, page_of_one):
        browser = shown(page, 390, 844)
        assert browser.ask("document.documentElement.scrollWidth") == 390
        picture = browser.shot(tmp_path / "narrow.png")
        assert struct.unpack(">II", picture[16:24]) == (390, 844)


def boxes(browser, selector: str) -> list[dict]:
    """Where elements are on the page, without those of no size."""
    return browser.ask(
        f"[...document.querySelectorAll({selector!r})].map(e => e.getBoundingClientRect().toJSON())"
        ".filter(b => b.width && b.height)"
    )


def test_a_narrow_screen_cuts_nothing_of_speeds_and_timelines(shown, page_of_bench):
    browser = shown(page_of_bench, 420, 844)
    browser.ask("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    for part in (".speed td", ".speed .split", ".estimates td", ".events td", ".bars span"):
        found = boxes(browser, part)
        assert found and max(box["right"] for box in found) <= 420, part
    lines = [box["height"] for box in boxes(browser, ".speed td.name")]
    assert len(lines) == 8 and max(lines) < 30, "a name is on one line"


def test_the_labels_of_a_sweep_keep_apart(shown, tmp_path):
    made = [
        made_run(tmp_path, name=f"r{lr}{gamma}", algo="rainbow-iqn", scores=[lr], settings=settings)
        for lr in (1, 2)
        for gamma in (0.9, 0.99)
        for settings in ({"learning_rate": lr, "gamma": gamma, "target_period": lr},)
    ]
    page = write_report([run.path for run in made], tmp_path / "sweep.html")
    for width, most in ((1280, 30), (420, 45)):
        browser = shown(page, width)
        labels = boxes(browser, ".forest .bar-label")
        assert len(labels) == 4 and max(box["height"] for box in labels) < most
        assert all(low["top"] - high["bottom"] > 8 for high, low in itertools.pairwise(labels))
        words = boxes(browser, ".forest .word")
        assert len(words) == 4 * 4 and max(box["height"] for box in words) < 25, "none is broken"


def downloaded(browser, name: str, folder) -> bytes:
    """What a click on a button leaves on the disk."""
    browser.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
    left, top, width, height = browser.place(f"[data-csv={name}]")
    browser.click(left + width / 2, top + height / 2)
    until = time.monotonic() + 30
    while not (found := list(folder.glob(f"{name}.csv"))) and time.monotonic() < until:
        browser.ask("1")  # its events are heard meanwhile
    assert [path.name for path in found] == [f"{name}.csv"]
    return found[0].read_bytes()


def test_the_buttons_give_the_tables_of_all_data(shown, page_of_bench, bench, tmp_path):
    browser = shown(page_of_bench)
    runs = {p.name: read_all(p) for p in bench.iterdir() if p.is_dir()}
    head = "run,env,algo,seed,mean,std,episodes,step,source,protocol,protocol_hash,state"
    rows = embedded(page_of_bench)["scores"]
    lines = [",".join("" if v is None else str(v) for v in row) for row in rows]
    assert {row[0] for row in rows} == set(runs)
    assert downloaded(browser, "scores", tmp_path) == "\n".join([head, *lines, ""]).encode()
    text = downloaded(browser, "curves", tmp_path).decode("utf-8")
    curves = list(csv.DictReader(io.StringIO(text)))
    for name, run in runs.items():
        mine = [row for row in curves if row["run"] == name]
        assert [int(row["step"]) for row in mine] == [w.step for w in run.windows]
        last = run.windows[-1]
        assert float(mine[-1]["mean"]) == pytest.approx(last.mean, rel=1e-4)
        assert (float(mine[-1]["min"]), float(mine[-1]["max"])) == (last.least, last.most)
        assert mine[-1]["env"] == run.env and mine[-1]["seed"] == str(run.seed)


def test_curves_are_there_without_javascript(shown, page_of_bench, tmp_path):
    browser = shown(page_of_bench)
    browser.javascript(False)
    try:
        browser.open(page_of_bench)
        _, _, width, height = browser.place("[data-chart=env0] .plot")
        assert width > 200 and height > 100
        drawn = browser.ask("document.querySelectorAll('[data-chart=env0] path.stroke').length")
        assert drawn == 6
        assert browser.ask("document.querySelector('.switch').offsetHeight") == 0
    finally:
        browser.javascript(True)


def test_it_prints(shown, page_of_bench, bench):
    browser = shown(page_of_bench)
    data = base64.b64decode(browser.call("Page.printToPDF", printBackground=True)["data"])
    paper = [unicodedata.normalize("NFKC", text) for text in pdf.pages(data)]
    assert 3 + 8 <= len(paper) <= 4 + 3 * 8 and all(text.strip() for text in paper)
    whole = "\n".join(paper)
    assert "Fewer than 5 seeds: 2 each" in paper[0] and "self-contained" in paper[-1]
    for name in (p.name for p in bench.iterdir() if p.is_dir()):
        assert f"\n{name}\n" in whole
    assert whole.count("Made by") == 8, "what is folded on the screen"
    assert browser.ask("document.querySelectorAll('details[open]').length") == 0, "and again after"
    for text in ("Scores CSV", "Evaluations", "Point at a curve"):
        assert text not in whole, "for the screen alone"
    headed = next(text for text in paper if "\nLearning curves\n" in f"\n{text}")
    assert "mean of the last 100 training episodes" in headed, "no title without its chart"


def test_a_printed_page_is_not_cut_at_its_side(shown, page_of_bench, page_of_one):
    for page in (page_of_bench, page_of_one):
        browser = shown(page, 720, 1000)  # what a sheet has between its margins
        browser.call("Emulation.setEmulatedMedia", media="print")
        try:
            assert browser.ask("document.documentElement.scrollWidth") <= 720
            assert browser.ask("getComputedStyle(document.querySelector('.bar')).display") == "none"
        finally:
            browser.call("Emulation.setEmulatedMedia", media="")


def test_the_committed_example_opens_from_disk(shown, root):
    browser = shown(root / "docs" / "example-report.html", 1400)
    left, top, width, height = browser.place("[data-chart=env0] .plot")
    browser.point(left + 0.9 * width, top + 0.5 * height)
    result = browser.ask("document.querySelector('.facts').innerText")
    assert "impala · 3 seeds" in result and "ppo · 3 seeds" in result
