"""Ape-X with one actor and with many, one forward pass per actor, and room for other fleets."""

from __future__ import annotations

import csv
import itertools
import json

import pytest
import torch

from ludus.algos.dqn import DQN
from ludus.cli.main import run as command
from ludus.fleets.base import Fleet
from ludus.track.checkpoint.reader import load
from tests.fleets.test_processes import loop_of, train

QUICK = ("steps=600", "env.num=2", "warmup=64", "batch=16", "capacity=2000",
         "replay_ratio=2", "env.max_episode_steps=20", "log.every=200", "tensorboard=off",
         "-q")  # fmt: skip


def command_trains(name, actors, folder):
    """One command; returns the environments that played and the last line of metrics."""
    words = ["train", name, "CartPole-v1", "fleet=processes", f"actors={actors}", *QUICK]
    assert command([*words, "--runs-dir", str(folder), "--run", "x"]) == 0
    assert load(folder / "x").state["updates"] > 0
    with (folder / "x" / "episodes.csv").open() as file:
        played = {int(row["slot"]) for row in csv.DictReader(file)}
    lines = (folder / "x" / "metrics.jsonl").read_text().splitlines()
    return played, json.loads(lines[-1])


@pytest.mark.accept(12)
@pytest.mark.parametrize("actors", [1, 3])
def test_apex_dqn_trains_with_one_actor_and_with_many(tmp_path, actors):
    played, metrics = command_trains("apex-dqn", actors, tmp_path)
    assert played == set(range(2 * actors)) and metrics["actors/alive"] == actors


@pytest.mark.accept(13)
@pytest.mark.parametrize("name", ["apex-rainbow", "apex-rainbow-iqn"])
def test_the_same_command_trains_rainbow_in_its_apex_form(tmp_path, name):
    played, metrics = command_trains(name, 2, tmp_path)
    assert played == {0, 1, 2, 3} and metrics["actors/alive"] == 2


@pytest.mark.accept(12)
@pytest.mark.accept(13)
@pytest.mark.parametrize("name", ["apex-dqn", "apex-rainbow", "rainbow"])
def test_actors_of_the_apex_form_value_what_they_send(tmp_path, name):
    loop = loop_of(tmp_path, name.replace("apex-rainbow", "rainbow"), "processes", **(
        {"algo.replay.initial": "actor"} if name == "apex-rainbow" else {}))  # fmt: skip
    loop.fleet.publish(loop.learner.net, 0)
    got = loop.fleet.poll(loop.values.at(0))
    valued = [collected.chunk.priority is not None for collected in got]
    loop.close()
    assert valued == [name != "rainbow"] * 2


class Counted(DQN):
    """Every answer says which call it came from, and for how many environments."""

    calls = itertools.count()  # of the process

    def act(self, net, step, state, ctx):
        action, _, state = super().act(net, step, state, ctx)
        call = torch.full(action.shape, float(next(Counted.calls)))
        return action, {"call": call, "asked": torch.full_like(call, len(call))}, state


@pytest.mark.accept(77)
@pytest.mark.parametrize("fleet", ["inline", "processes"])
def test_an_actor_asks_its_policy_once_for_all_its_environments(tmp_path, fleet):
    loop = loop_of(tmp_path, "dqn", fleet, kind=Counted, **{"env.num": 5, "algo.chunk": 4})
    chunks = []
    while len(chunks) < 6:
        loop.fleet.publish(loop.learner.net, 0)
        chunks += [got.chunk for got in loop.fleet.poll(loop.values.at(0))]
    seen = [{k: v.clone() for k, v in c.rows.extras.items()} for c in chunks]
    loop.close()
    assert {chunk.source for chunk in chunks} == {0, 1}
    for extras in seen:
        call = extras["call"]
        assert (extras["asked"] == 5).all() and call.shape == (4, 5)
        assert torch.equal(call, call[:1, :1] + torch.arange(4)[:, None].expand(-1, 5))


class Relay:
    """Another fleet: it has what the protocol names and nothing else, and passes it on."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self.asked = fleet, set()

    def __getattr__(self, name: str):
        known = {n for n in (*vars(Fleet), *Fleet.__annotations__) if not n.startswith("_")}
        if name not in known:
            raise AttributeError(f"not in the protocol: {name}")
        self.asked.add(name)
        return getattr(self._fleet, name)


@pytest.mark.accept(78)
@pytest.mark.parametrize("kind", ["processes", "another"])
def test_fleets_are_exchanged_behind_one_interface(tmp_path, kind):
    """Actors in processes, and whatever else has the protocol, train to the same weights."""
    loop = loop_of(tmp_path / "inline", "dqn", "inline")
    weights, _ = train(loop, 60)
    loop.close()
    loop = loop_of(tmp_path / kind, "dqn", "processes" if kind == "processes" else "inline")
    if kind == "another":
        loop.fleet = Relay(loop.fleet)
        while loop.learner.updates < 60:
            loop.iterate()
        assert {"publish", "poll"} <= loop.fleet.asked
        found = torch.cat([p.detach().flatten() for p in loop.learner.net.parameters()])
    else:
        found, processes = train(loop, 60)
        assert len(processes) == 2, "native worker processes"
    loop.close()
    assert torch.equal(found, weights)
