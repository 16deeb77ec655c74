"""A page stays under 1.5 MB, whatever runs are in it, and every curve keeps its two ends."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from ludus.reporting.charts import thin
from ludus.reporting.curves import learning_chart
from ludus.reporting.html import render
from ludus.reporting.page_data import page_data
from ludus.reporting.run_parts import METRICS, SPLIT
from ludus.reporting.sizes import Sizes
from ludus.stats.groups import group_runs
from ludus.stats.references import _scores, human_normalized
from ludus.stats.runs import Evaluation
from ludus.stats.windows import Window
from tests.reporting.conftest import read_all
from tests.stats.made import made_run

LIMIT = 1_500_000
END = 50_000_000
ALGOS = ("dqn", "ppo", "rainbow-iqn")
_draw = random.Random(5)


def number(size: float = 1e4) -> float:
    """Of all digits: it takes as much room as a number can."""
    return _draw.random() * size


WINDOWS = [
    Window(END * (i + 1) // 240, number(), number(), number(), number(), number(), 100)
    for i in range(240)
]
EVALUATIONS = [Evaluation(END * (i + 1) // 150, number(), number(), 10) for i in range(150)]
LINES = [
    {"step": END * (i + 1) // 500, "updates": i, **{name: number() for name, _, _ in METRICS}}
    | {f"time/{part}": number() for part in SPLIT}
    for i in range(500)
]
EVENTS = [
    {"kind": kind, "step": i, "time": f"2026-01-01T00:{i // 60:02d}:{i % 60:02d}+0000"}
    | ({"what": "an actor was slow to answer"} if kind == "warning" else {})
    for i, kind in enumerate(["start", *["checkpoint", "evaluation", "warning"] * 200, "end"])
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    made = made_run(tmp_path_factory.mktemp("made"), env="ALE/Pong-v5", scores=[1.0])
    full = {"windows": WINDOWS, "during": EVALUATIONS, "metrics": LINES, "events": EVENTS}
    rules = {"protocol": "dopamine", "protocol_hash": "0123456789ab"}
    return replace(read_all(made.path), step=END, steps=END, manifest=rules, **full)


def matrix(run, algos, seeds):
    """Runs of every Atari game with a human score."""
    names = [game for game in _scores() if human_normalized(game, 0.0) is not None]
    envs = ["ALE/" + "".join(map(str.capitalize, name.split("_"))) + "-v5" for name in names]
    return [
        replace(run, env=env, algo=algo, seed=seed, name=f"{env[4:]}-{algo}-s{seed}-7f3a")
        for env in envs
        for algo in algos
        for seed in range(seeds)
    ]


def page(runs) -> tuple[str, dict]:
    changed = {str(run.path): [(f"algo.setting{i}", "1", "2") for i in range(20)] for run in runs}
    text = render(page_data(runs, Path("report.html"), changed=changed))
    return text, json.loads(text.split('id="data">')[1].split("</script>")[0])


MANY = {
    "57 games, 3 algorithms, 5 seeds": (ALGOS, 5, None),
    "57 games, 3 algorithms, 3 seeds": (ALGOS, 3, None),
    "57 games, 1 algorithm, 5 seeds": (ALGOS[:1], 5, None),
    "57 games, 1 algorithm, 1 seed": (ALGOS[:1], 1, None),
    "150 runs, lone ones": (ALGOS, 1, 150),
    "as many as have details": (ALGOS, 2, 24),
    "one more": (ALGOS, 2, 25),
    "a dozen": (ALGOS, 2, 12),
}


@pytest.mark.parametrize("case", MANY)
def test_a_page_stays_under_the_limit(run, case):
    algos, seeds, most = MANY[case]
    runs = matrix(run, algos, seeds)[:most]
    text, data = page(runs)
    assert len(text.encode()) < LIMIT
    assert text.count("<details") == (len(runs) if len(runs) <= 24 else 0)
    charts = data["charts"].values()
    drawn = [line for chart in charts for line in chart["lines"] if line.get("r")]
    assert len(drawn) == len(runs) and len(data["scores"]) == len(runs)
    assert {(line["x"][0], line["x"][-1]) for line in drawn} == {(WINDOWS[0].step, END)}
    assert min(len(line["x"]) for line in drawn) >= 8
    dots = [x for chart in charts for x in chart["lines"] if x["t"].startswith("seed")]
    assert {line["x"][-1] for line in dots} == {END}, "the last evaluation too"


def test_a_single_run_is_reported_in_full(run):
    text, data = page([run])
    assert len(text.encode()) < LIMIT / 5
    line, dots = (next(x for x in data["charts"]["env0"]["lines"] if x["k"] == k)
                  for k in ("mean", "dots"))  # fmt: skip
    assert len(line["x"]) == 240 and {"sd", "lo", "hi", "e", "s"} <= set(line)
    assert dots["x"][0] == EVALUATIONS[0].step and dots["x"][-1] == EVALUATIONS[-1].step == END
    assert "after" not in dots and len(re.findall('class="routine"', text)) > 100


@pytest.mark.parametrize("length", [1, 2, 99, 100, 101, 150, 199, 1_000])
def test_thinning_keeps_both_ends(length):
    found = thin(range(length), 100)
    assert (found[0], found[-1]) == (0, length - 1) and len(found) == min(length, 100)
    assert found == sorted(set(found))


def test_the_last_evaluation_is_among_the_dots(run):
    """150 of them for 100 places: every second one would leave out the last."""
    (group,) = group_runs([run])
    chart = learning_chart("k", run.env, [group], {group.label: 0}, [], Sizes())
    dots = chart.data["lines"][-1]
    assert (dots["k"], dots["x"][-1], dots["y"][-1]) == (
        "dots", END, pytest.approx(EVALUATIONS[-1].mean, rel=1e-4),
    )  # fmt: skip
