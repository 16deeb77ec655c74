"""Weights that lie alone are checked too: a digest in their header, sizes, and finite numbers."""

from __future__ import annotations

import json
import random
import resource
import shutil

import pytest
import safetensors.torch
import torch

from ludus.agents import agent_file, agent_names
from ludus.algos.dqn import DQN
from ludus.errors import LudusError
from ludus.evals.agent import load_agent
from ludus.track.checkpoint import tensor_file
from ludus.track.checkpoint.reader import load_file
from tests.cli.conftest import call
from tests.contract.tiny import run, tiny


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return run(tiny("dqn", "CartPole-v1", "steps=200"), tmp_path_factory.mktemp("runs")).path


@pytest.fixture
def file(saved, tmp_path):
    lone = tmp_path / "champion.safetensors"
    shutil.copy(next(saved.glob("checkpoints/0*/model.safetensors")), lone)
    return lone


def parts(data: bytes) -> tuple[dict, bytes]:
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def joined(header: dict, data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def test_every_flipped_byte_of_a_lone_file_is_noticed(file):
    data, draw = file.read_bytes(), random.Random(0)
    header = int.from_bytes(data[:8], "little")
    places = [*range(12), *draw.sample(range(8, 8 + header), 300)]
    at = data.index(b'"sha256"')  # the digest, its name, and the word that demands it
    places += [*range(at, at + 76), *range(data.index(b"format"), data.index(b"format") + 10)]
    places += draw.sample(range(8 + header, len(data)), 100)
    for place in places:
        for bit in (0, 5):
            broken = bytearray(data)
            broken[place] ^= 1 << bit
            file.write_bytes(broken)
            with pytest.raises(LudusError, match="E305"):
                load_file(file)
    file.write_bytes(data)
    assert not load_file(file).warnings


def test_a_file_that_was_cut_or_goes_on_is_noticed(file):
    data = file.read_bytes()
    for broken in (data[:-1], data + b"\0", data[: len(data) // 2], data[:5], b"", data * 2):
        file.write_bytes(broken)
        with pytest.raises(LudusError, match="E305"):
            load_file(file)


def test_weights_without_a_digest_load_with_a_warning(saved, file):
    header, data = parts(file.read_bytes())
    result = json.loads(header["__metadata__"]["ludus"])
    del header["__metadata__"]["sha256"], result["format"]
    header["__metadata__"]["ludus"] = json.dumps(result)
    file.write_bytes(joined(header, data))
    agent = load_agent(file)
    assert agent.step > 0 and len(agent.warnings) == 1 and "no digest" in agent.warnings[0]
    answer = call("eval", file, "--episodes", "1", "--no-video")
    assert answer.code == 0 and answer.err.count("no digest") == 1
    assert not load_agent(saved).warnings


@pytest.mark.parametrize("name", agent_names())
def test_agents_that_come_with_ludus_have_a_digest(name):
    assert not load_file(agent_file(name)).warnings


def test_the_same_weights_give_the_same_bytes():
    tensors = {"b": torch.arange(3.0), "a": torch.zeros(2, 2)}
    first = tensor_file.dump(tensors, {"step": 1})
    assert first == tensor_file.dump(tensors, {"step": 1})
    assert first != tensor_file.dump(tensors, {"step": 2})
    back = safetensors.torch.load(first)  # by anybody
    assert torch.equal(back["b"], tensors["b"]) and set(back) == {"a", "b"}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(saved, file, value):
    tensors = safetensors.torch.load_file(file)
    name = next(n for n, t in tensors.items() if t.is_floating_point() and t.numel() > 3)
    tensors[name].view(-1)[3] = value
    file.write_bytes(tensor_file.dump(tensors, load_file(file).state))
    with pytest.raises(LudusError, match="E305") as caught:
        load_agent(file)
    assert name in caught.value.render() and "finite" in caught.value.render()
    for verb in ("eval", "record"):
        answer = call(verb, file, "--episodes", "1")
        assert answer.code == 1 and "E305" in answer.err, answer.err


def grown(header: dict, shape: list[int]) -> dict:
    name = next(n for n, entry in header.items() if len(entry.get("shape", ())) == 2)
    begin, _ = header[name]["data_offsets"]
    size = 4 * shape[0] * shape[1]
    header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, begin + size]}
    return header


def test_sizes_in_a_header_are_checked_before_they_are_allocated(file):
    header, data = parts(file.read_bytes())
    del header["__metadata__"]["sha256"]
    file.write_bytes(joined(grown(header, [40_000, 40_000]), data))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(LudusError, match="E305"):
        load_file(file)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kB


def test_a_network_larger_than_its_weights_is_never_built(file):
    result = load_file(file)
    result.state["config"]["algo"]["torso"] = {"kind": "mlp", "hidden": [40_000, 40_000]}
    file.write_bytes(tensor_file.dump(result.tensors["model"], result.state))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(LudusError, match="E306"):
        load_agent(file)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kB


@pytest.mark.parametrize("hidden", [1 << 63, 1 << 62, 1 << 40, 1 << 20])
def test_a_layer_of_any_size_is_an_answer(file, hidden):
    """2**63 units raised TypeError in torch, 2**62 RuntimeError."""
    result = load_file(file)
    result.state["config"]["algo"]["torso"] = {"kind": "mlp", "hidden": [16, hidden]}
    file.write_bytes(tensor_file.dump(result.tensors["model"], result.state))
    with pytest.raises(LudusError):
        load_agent(file)


def test_a_network_that_cannot_be_built_is_an_answer(file, monkeypatch):
    """An algorithm of one's own may fail for any cause while it builds."""

    def fail(self, spec):
        raise RuntimeError("no such layer")

    monkeypatch.setattr(DQN, "build", fail)
    with pytest.raises(LudusError, match=r"E306[\s\S]*no such layer"):
        load_agent(file)


def test_a_typed_layer_that_is_too_wide_is_named():
    answer = call("train", "dqn", "CartPole-v1", f"torso.hidden=[{1 << 63}]", "--dry-run")
    assert answer.code == 2 and "torso.hidden" in answer.err and "1048576" in answer.err
