"""The page as text: everything is in it, nothing is outside it, and it stays small."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

import ludus
from ludus.errors import LudusError
from ludus.reporting import write_report
from ludus.reporting.charts import Line, draw, ticks
from ludus.reporting.html import number, render
from ludus.reporting.page_data import page_data
from ludus.reporting.settings import differences
from ludus.stats.runs import Evaluation
from ludus.stats.windows import Window
from ludus.track.run_dir.rundir import find_runs
from tests.reporting.conftest import embedded, read_all

LIMIT = 1_500_000


def sections(text: str) -> list[str]:
    return re.findall(r'<section id="(\w+)"', text)


def test_a_finished_run(one):
    run = read_all(one)
    assert (run.algo, run.env, run.seed, run.state) == ("dqn", "CartPole-v1", 1, "finished")
    assert run.step >= 400 and run.windows and run.metrics[-1]["step"] == run.step
    assert [e.episodes for e in run.during] == [2] * len(run.during) and len(run.during) >= 2
    assert run.events[0]["kind"] == "start" and run.seconds > 0


@pytest.mark.accept(132)
def test_a_run_shows_mean_deviation_extremes_and_details(page_of_one, one):
    text, data = page_of_one.read_text(), embedded(page_of_one)
    assert sections(text) == ["scores", "learning", "speed", "protocol", "runs"]
    run = read_all(one)
    line = next(x for x in data["charts"]["env0"]["lines"] if x.get("r") == run.name)
    last = run.windows[-1]
    assert line["x"][-1] == last.step and line["y"][-1] == pytest.approx(last.mean, rel=1e-4)
    assert line["sd"][-1] == pytest.approx(last.std, rel=1e-4)
    assert (line["lo"][-1], line["hi"][-1], line["e"][-1]) == (last.least, last.most, last.episodes)
    chart = text.split('data-chart="env0"')[1].split("</figure>")[0]
    assert 'class="band"' in chart and 'class="outer"' in chart, "drawn without JavaScript"
    dots = next(x for x in data["charts"]["env0"]["lines"] if x["k"] == "dots")
    assert dots["x"] == [e.step for e in run.during]


@pytest.mark.accept(133)
def test_several_runs_show_each_seed_and_their_mean_and_deviation(page_of_bench, bench):
    text, data = page_of_bench.read_text(), embedded(page_of_bench)
    assert sections(text) == ["scores", "learning", "aggregates", "speed", "protocol", "runs"]
    lines = data["charts"]["env0"]["lines"]
    seeds = {(x["n"], x["t"]) for x in lines if x["k"] == "seed"}
    assert seeds == {(a, f"seed {s}") for a in ("dqn", "ppo") for s in (1, 2)}
    mean = next(x for x in lines if x["k"] == "mean" and x["n"] == "dqn")
    one, two = (next(x for x in lines if (x["n"], x["t"]) == ("dqn", f"seed {s}")) for s in (1, 2))
    at = mean["x"].index(min(one["x"][-1], two["x"][-1]))
    ends = [one["y"][-1], two["y"][-1]] if one["x"][-1] == two["x"][-1] else None
    low, high = mean["lo"][at], mean["hi"][at]
    assert low <= mean["y"][at] <= high and mean["y"][at] == pytest.approx((low + high) / 2, 1e-3)
    assert mean["sd"][at] == pytest.approx((high - low) / 2**0.5, rel=1e-3, abs=1e-3)
    assert ends is None or mean["y"][at] == pytest.approx(sum(ends) / 2, rel=1e-3)
    assert "Probability of improvement" in text and "Fewer than 5 seeds: 2 each" in text


@pytest.mark.accept(134)
@pytest.mark.accept(135)
def test_losses_rates_queue_replay_and_lag(fleet):
    path = fleet / "report.html"  # as training left it
    text, data = path.read_text(), embedded(path)
    titles = {c["name"] for key, c in data["charts"].items() if key.startswith("r0")}
    assert {"loss", "learning rate", "gradient norm"} <= titles
    assert {"updates per second", "frames per second", "queue depth (chunks)"} <= titles
    assert {"replay size (items)", "policy lag (updates)"} <= titles
    last = json.loads((fleet / "metrics.jsonl").read_text().splitlines()[-1])
    sizes = next(c for c in data["charts"].values() if c["name"] == "replay size (items)")
    assert sizes["lines"][0]["y"][-1] == last["replay/size"]
    split = [float(x) for x in re.findall(r'style="width:([\d.]+)%" title="\w+ ', text)]
    assert len(split) == 4 and sum(split) == pytest.approx(100, abs=0.5)
    assert "finished, 100 %" in text, "the final summary"


def test_a_lone_run_names_its_seed(one, tmp_path):
    """A number there is a count on every other page."""
    result = page_data([replace(read_all(one), seed=7)], tmp_path / "a.html")["summary"]
    assert result[0] == ("seed 7", "one run") and ("7", "seed") not in result


def test_only_the_report_of_the_run_itself_is_rewritten(one):
    run = replace(read_all(one), state="running")
    kept = "while training goes on; this file stays as it is"
    own = "while training goes on; it is rewritten about once a minute"
    for runs, out, result in (
        ([run], run.path / "report.html", own),
        ([run], run.path / "other.html", kept),
        ([run, replace(run, seed=2)], run.path / "report.html", kept),
    ):
        assert result in render(page_data(runs, out))
    assert "while training goes on" not in render(
        page_data([replace(run, state="finished")], Path("a"))
    )


def test_the_evaluation_that_is_the_score_is_marked(one):
    run = read_all(one)
    older, last = (Evaluation(s, 1.0, 0.0, 5, f"e{s}") for s in (run.step - 1, run.step))
    text = render(page_data([replace(run, after=[older, last])], Path("a.html")))
    rows = re.findall(r"<tr[^>]*><td>e\d+.*?</tr>", text)
    assert ["the run's score" in row for row in rows] == [False, True]
    text = render(page_data([replace(run, after=[older])], Path("a.html")))
    assert "The run's score is none of these: eval while training." in text


def test_what_differs_from_the_preset(one):
    run = read_all(one)
    changed = {key: (before, now) for key, before, now in differences(run.config, None)}
    assert changed["run.steps"] == ("100000", "400") and changed["env.num"][1] == "2"
    assert "run.seed" not in changed and "algo.gamma" not in changed
    assert differences({"algo": {"name": "gone"}, "env": {"id": "CartPole-v1"}}, None) is None


def test_nothing_is_outside_the_file(page_of_bench, page_of_one):
    for page in (page_of_bench, page_of_one):
        text = page.read_text()
        assert page.stat().st_size < LIMIT
        assert not re.search(r'(?:src|href|action|poster)\s*=\s*["\']?\s*(?:https?:)?//', text)
        assert not re.search(r"@import|url\(|<iframe|<object|<embed|<base", text)
        assert [t for t in re.findall(r"<(script|link)[^>]*>", text)] == [
            "link",
            "script",
            "script",
        ]
        policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)[1]
        script = text.rpartition("<script>")[2].partition("</script>")[0]
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert "default-src &#39;none&#39;" in policy and f"sha256-{digest}" in policy.replace(
            "&#43;", "+"
        )


def test_reference_curves_lie_behind_runs_of_the_same_protocol(one):
    run = read_all(one)
    windows = [Window(i * 250_000, i, i, 1.0, 0.0, 20.0, 100) for i in range(1, 9)]
    config = {**run.config, "env": {"id": "ALE/Pong-v5", "atari": {"skip": 4}}}

    def chart(protocol):
        played = replace(
            run, env="ALE/Pong-v5", windows=windows, config=config, step=2_000_000, during=[],
            manifest={"protocol": protocol},
        )  # fmt: skip
        return page_data([played], Path("a.html"))["data"]["charts"]["env0"]

    behind = [x for x in chart("dopamine")["lines"] if x["k"] == "reference"]
    assert behind and all("sticky" in x["t"] and max(x["x"]) <= 2_500_000 for x in behind)
    assert chart("dopamine")["skip"] == 4 and "DQN" in behind[0]["n"]
    assert not [x for x in chart("dqn-2015*")["lines"] if x["k"] == "reference"]


def test_videos_are_linked_or_embedded(one, tmp_path):
    import shutil

    place = tmp_path / "runs" / one.name
    shutil.copytree(one, place, symlinks=True)
    (place / "videos").mkdir()
    (place / "videos" / "a b.mp4").write_bytes(b"film")
    (place / "videos" / "c.gif").write_bytes(b"GIF89a")
    (place / "videos" / "notes.txt").write_text("no video")
    linked = write_report([place], tmp_path / "a.html").read_text()
    assert f'src="runs/{one.name}/videos/a%20b.mp4"' in linked and "notes.txt" not in linked
    whole = write_report([place], tmp_path / "b.html", embed_videos=True).read_text()
    assert f"data:video/mp4;base64,{base64.b64encode(b'film').decode()}" in whole
    assert "data:image/gif;base64," in whole and "a%20b.mp4" not in whole


def test_links_to_reports_that_travel_along(bench, page_of_bench):
    runs = [p for p in sorted(bench.iterdir()) if p.is_dir()]
    inside = write_report(runs, bench / "report.html").read_text()
    assert all(f'href="{run.name}/report.html"' in inside for run in runs)
    assert "own report</a>" not in page_of_bench.read_text(), "elsewhere they would be lost"


def test_finding_runs(bench, one, monkeypatch, tmp_path):
    folders = {p for p in bench.iterdir() if p.is_dir()}
    assert {run.path for run in find_runs([bench], Path("none"))} == folders
    assert {run.path for run in find_runs([bench.name], bench.parent)} == folders
    assert [run.path for run in find_runs([one, one], Path("none"))] == [one]
    assert [run.path for run in find_runs([one.name], bench)] == [one]
    with pytest.raises(LudusError, match="E303"):
        find_runs(["no-such-run"], bench)
    with pytest.raises(LudusError, match="E303"):
        write_report([], tmp_path / "x.html")
    (tmp_path / "file").write_text("")
    with pytest.raises(LudusError, match="E301"):
        write_report([one], tmp_path / "file" / "x.html")
    monkeypatch.setenv("LUDUS_RUNS_DIR", str(bench))
    assert ludus.report([one.name], tmp_path / "d" / "r.html", title="Mine").is_file()
    assert "<h1>Mine</h1>" in (tmp_path / "d" / "r.html").read_text()


def test_ticks_and_numbers():
    assert ticks(0, 500, 5) == [0, 100, 200, 300, 400, 500]
    assert ticks(-21, 21, 5) == [-20, -10, 0, 10, 20]
    assert ticks(3, 3, 5) == [3]
    shown = [number(v) for v in (None, 0.0, 12345.6, -3.14159, 0.00001234, 500.0)]
    assert shown == ["–", "0", "12,346", "−3.142", "1.234e−05", "500"]


def test_the_legend_has_every_algorithm():
    """One of a single point too, which is drawn as a dot; several alike are one entry."""
    lines = [Line("a", 0, [0, 1], [1.0, 2.0], note="2 seeds"), Line("b", 1, [1], [3.0], note="n")]
    chart = draw("k", "t", [*lines, Line("a: evaluation", 0, [1], [1.0], "dots")])
    assert [(entry.name, entry.note) for entry in chart.legend] == [("a", "2 seeds"), ("b", "n")]
    alone = [Line("b", 1, [1], [3.0], note=f"seed {i}") for i in (1, 2)]
    assert [(e.name, e.note) for e in draw("k", "t", alone).legend] == [("b", "")]


def test_a_range_may_be_given():
    chart = draw("k", "t", [Line("a", 0, [0, 1], [0.2, 0.4])], y_range=(0.0, 1.0))
    assert chart.data["y"] == (0.0, 1.0)
    assert [(tick.at, tick.text) for tick in chart.y_ticks][::5] == [(0.0, "0"), (100.0, "1")]


def test_lines_without_a_place_are_left_out():
    assert draw("k", "t", [Line("a", 0, [], [])]) is None
    assert draw("k", "t", [Line("a", 0, [1.0], [float("nan")])]) is None
    chart = draw("k", "t", [Line("a", 0, [0, 1, 2], [1.0, float("inf"), 3.0])])
    assert chart.data["lines"][0]["x"] == [0, 2] and "inf" not in chart.lines[0].path
    narrow = draw("k", "t", [Line("a", 0, [0, 1], [2.4, 5.9])], small=True)
    assert len(narrow.y_ticks) >= 2 and len(narrow.x_ticks) >= 2
    rates = draw("k", "t", [Line("a", 0, [0, 1], [0.0001, 0.0007])], small=True)
    assert [tick.text for tick in rates.y_ticks] == ["0", "2.5e−4", "5e−4"]
    flat = draw("k", "t", [Line("a", 0, [0, 1], [5.0, 5.0])])
    assert flat.data["y"][0] < 5 < flat.data["y"][1]
