"""What evaluations and videos leave stays there, also where two agents share a folder."""

from __future__ import annotations

import json
import shutil

import pytest

from ludus.evals import film
from ludus.evals.agent import load_agent
from ludus.evals.result import EvalResult, write_result
from tests.cli.conftest import call
from tests.contract.tiny import run, tiny


def test_another_seed_or_number_of_episodes_replaces_nothing(tmp_path):
    """A quick look must not cost the evaluation that took an hour."""

    def kept(seed, count):
        result = EvalResult([1.0] * count, [1] * count, [0] * count, 9, settings={"seed": seed})
        return write_result(result, tmp_path)

    whole = kept(1, 100)
    before = whole.read_bytes()
    assert kept(1, 3) != whole != kept(7, 100) and whole.read_bytes() == before
    assert kept(1, 100) == whole and kept(1, 3) == kept(1, 3)
    assert len(list(tmp_path.glob("greedy-*.json"))) == len(list(tmp_path.glob("*.csv"))) == 3


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Two runs of the same length, which differ in their seed."""
    root, cfg = tmp_path_factory.mktemp("runs"), ("dqn", "CartPole-v1", "steps=80")
    small = ("env.max_episode_steps=9",)
    return [run(tiny(*cfg, *small, f"seed={n}"), root / str(n)).path for n in (1, 2)]


def lone(path, folder):
    """Its weights, taken away, under the name that all weights have."""
    folder.mkdir()
    shutil.copy(next(path.glob("checkpoints/0*/model.safetensors")), folder)
    return folder / "model.safetensors"


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("alone", [False, True])
def test_another_agents_evaluation_replaces_nothing(pair, tmp_path, alone):
    first, second = (lone(p, tmp_path / p.name) if alone else p for p in pair)
    shared = tmp_path / "o"

    def kept(agent):
        words = ("--seed", "5", "--episodes", "2", "--no-video", "--json", "--out", shared)
        answer = call("eval", agent, *words)
        assert answer.code == 0, answer.err
        return answer.json["file"]

    one = kept(first)
    before = files(shared)
    other = kept(second)
    assert one.endswith(f"{shared}/greedy-{load_agent(first).step}.json") and other != one
    assert pair[1].name in other, "it says whose it is"
    after = files(shared)
    assert before.items() <= after.items() and len(after) == 4, "scores of both, as JSON and CSV"
    found = [json.loads(after[name.rpartition("/")[2]])["weights"] for name in (one, other)]
    assert found[0] != found[1], "and of which weights"
    assert (kept(first), kept(second)) == (one, other) and len(files(shared)) == 4


def test_agents_of_one_name_in_one_folder(tmp_path):
    def kept(folder, weights):
        where = {"checkpoint": str(tmp_path / folder / "champion.safetensors")}
        settings = {"seed": 1, "weights": weights}
        result = EvalResult([1.0], [1], [0], 9, settings=settings, **where)
        return write_result(result, tmp_path / "o").name

    named = [kept("a", "aaa"), kept("b", "bbb"), kept("c", "ccc")]
    assert named == ["greedy-9.json", "greedy-champion-9.json", "greedy-champion-ccc-9.json"]
    assert [kept("a", "aaa"), kept("b", "bbb"), kept("c", "ccc")] == named


def test_what_another_program_wrote_is_left_alone(tmp_path):
    foreign = tmp_path / "greedy-9.json"
    foreign.write_text("mine")
    write_result(EvalResult([1.0], [1], [0], 9, settings={"seed": 1}), tmp_path)
    assert foreign.read_text() == "mine"


def test_another_agents_film_replaces_nothing(pair, tmp_path):
    """Nor that of another seed; the same once more does."""
    pytest.importorskip("imageio_ffmpeg")
    shared = tmp_path / "videos"

    def shot(agent, seed=5):
        return next(iter(list(film.record(agent, agent.rules(), shared, seed=seed))))

    first, second = (load_agent(lone(p, tmp_path / p.name)) for p in pair)
    one = shot(first).path
    before = files(shared)
    other = shot(second).path
    assert other != one and pair[1].name in other.name and before.items() <= files(shared).items()
    third = shot(first, seed=6).path
    assert "seed6" in third.name and before.items() <= files(shared).items()
    assert (shot(first).path, shot(second).path) == (one, other) and len(files(shared)) == 6
