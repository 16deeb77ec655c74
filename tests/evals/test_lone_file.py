"""model.safetensors taken out of its checkpoint is still an agent."""

from __future__ import annotations

import json
import shutil

import pytest
import safetensors.torch

import ludus
from ludus.errors import LudusError
from ludus.evals.agent import load_agent
from tests.cli.conftest import call
from tests.contract.tiny import run, tiny


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return run(tiny("dqn", "CartPole-v1", "steps=200"), tmp_path_factory.mktemp("runs")).path


def taken(path, folder):
    file = folder / "champion.safetensors"
    shutil.copy(next(path.glob("checkpoints/0*/model.safetensors")), file)
    return file


def test_weights_carry_their_settings(path, tmp_path):
    file = taken(path, tmp_path)
    here, there = load_agent(file), load_agent(path)
    assert here.cfg == there.cfg and here.step == there.step > 0
    assert here.evaluate(4, seed=1).scores == there.evaluate(4, seed=1).scores
    alone = call("eval", file, "--episodes", "2", "--json", "--no-video")
    assert alone.code == 0 and alone.json["step"] == there.step and alone.json["file"] is None
    kept = call("eval", file, "--episodes", "2", "--out", tmp_path / "o", "--json", "--no-video")
    assert (tmp_path / "o" / f"greedy-{there.step}.csv").is_file()
    assert kept.json["scores"] == alone.json["scores"]


def test_inside_its_run_the_run_keeps_the_scores(path):
    file = next(path.glob("checkpoints/0*/model.safetensors"))
    for place in (file, file.parent):
        shutil.rmtree(path / "eval", ignore_errors=True)
        ludus.evaluate(place, episodes=2)
        assert len(list((path / "eval").glob("greedy-*.json"))) == 1


@pytest.mark.parametrize("which", ["best", "100"])
def test_of_one_agent_no_checkpoint_can_be_chosen(path, tmp_path, which):
    """The answer would be of the only one there is, under the name of another."""
    one = next(path.glob("checkpoints/0*"))
    for place in (taken(path, tmp_path), one, one / "model.safetensors", "agent:cartpole-ppo"):
        refused = call("eval", place, "--checkpoint", which, "--episodes", "1", "--no-video")
        assert refused.code == 2 and "E104" in refused.err and "--checkpoint" in refused.err
    assert load_agent(one).step == load_agent(path, str(int(one.name))).step


def test_a_changed_byte_inside_a_checkpoint_is_noticed(path, tmp_path):
    folder = tmp_path / next(path.glob("checkpoints/0*")).name
    shutil.copytree(next(path.glob("checkpoints/0*")), folder)
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(LudusError) as caught:
        load_agent(file)
    assert caught.value.code == "E305"


def test_weights_without_settings_say_what_to_type(path, tmp_path):
    """As older versions and other programs write them."""
    file = taken(path, tmp_path)
    tensors = safetensors.torch.load_file(file)
    safetensors.torch.save_file(tensors, file)
    refused = call("eval", file, "--episodes", "2")
    assert refused.code == 1 and "E306" in refused.err
    assert f"ludus eval {file} --config RUN/config.yaml" in refused.err
    words = ("--config", path / "config.yaml", "--episodes", "2", "--json", "--no-video")
    assert call("eval", file, *words).json["scores"]


@pytest.mark.parametrize("about", ["no json", "[]", json.dumps({"config": 3}), "[" * 100_000])
def test_a_strange_header_is_no_settings(path, tmp_path, about):
    file = taken(path, tmp_path)
    safetensors.torch.save_file(safetensors.torch.load_file(file), file, {"ludus": about})
    with pytest.raises(LudusError) as caught:
        load_agent(file)
    assert caught.value.code == "E306"


def test_a_file_that_is_none(tmp_path):
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"\xff" * 40)
    answer = call("eval", file)
    assert answer.code == 1 and "E305" in answer.err
