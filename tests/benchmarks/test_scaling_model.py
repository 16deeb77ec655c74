"""The model of docs/scaling.md: true to what was measured, and its limits where they should be."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import scaling_model as scaling


@pytest.fixture(scope="module", params=["impala", "apex-dqn"])
def model(request):
    (found,) = [model for model in scaling.models() if model.algo == request.param]
    return found


def test_the_page_and_its_plot_show_the_model():
    text = scaling.PAGE.read_text(encoding="utf-8")
    assert text == scaling.page(text), "python benchmarks/scaling_model.py --write"
    assert scaling.IMAGE.read_text(encoding="utf-8") == scaling.draw()


def test_the_inputs_that_the_page_lists_are_those_of_the_model(model):
    text = scaling.PAGE.read_text(encoding="utf-8")
    for number in (model.actor_steps, model.updates, model.steps_per_update, model.insert_rows):
        assert number == float("inf") or f"{number:,.0f}" in text
    assert f"{model.weight_bytes / 1e6:.1f} MB" in text
    assert f"{model.chunks:,.0f}/s, of {model.chunk_steps:.0f} steps" in text
    assert f"{model.network:.0f} Gbit/s" in text


def test_the_rule_holds_for_whole_runs():
    found = scaling.checks()
    assert len(found) == 4
    for name, said, measured in found:
        assert 0.95 <= measured / said <= 1.05, name


def test_the_first_limit_is_the_actors_and_the_next_the_learner(model):
    few, many = replace(model, actors=4), replace(model, actors=1000)
    assert few.bottleneck == "actors" and few.steps == 4 * model.actor_steps and few.busy == 1
    assert many.bottleneck == "learner"
    assert many.updates_made == pytest.approx(model.updates)
    assert many.busy < 0.2
    assert many.hours[1] > 5 * few.hours[1]  # cores that wait cost as much


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({"network": 0.5}, "network"),
        ({"chunk_steps": 1.0}, "messages"),
        ({"publish_seconds": 1e-4}, "weights"),
        ({"insert_rows": 1_000.0}, "replay"),
        ({"updates": 1.0}, "learner"),
    ],
)
def test_each_part_can_be_the_limit(model, changes, limit):
    assert replace(model, actors=32, **changes).bottleneck == limit


def test_more_of_anything_is_never_slower(model):
    speeds = [replace(model, actors=n).steps for n in scaling.SIZES]
    assert speeds == sorted(speeds)
    many = replace(model, actors=1000)
    enough = replace(many, learners=many.needed_learners())
    assert enough.bottleneck == "actors" and enough.busy == 1
    assert replace(many, learners=many.needed_learners() - 1).bottleneck != "actors"


def test_one_size_with_numbers_of_your_own(capsys, monkeypatch):
    words = ["scaling_model.py", "--actors", "10", "--actor-steps", "700", "--network", "0.01"]
    monkeypatch.setattr("sys.argv", words)
    assert scaling.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["impala", "apex-dqn"]
    assert all(re.search(r"limit: (network|weights)", line) for line in lines)
