"""Three kinds of actor state: stored with chunks, private to the collector, lasting for ever."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ludus.collect.collector import Collector
from ludus.collect.device_runner import choose_runner
from ludus.contract import ActorState, Values, lasting_state, stored_state
from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs
from ludus.fleets.base import join_state, split_state
from ludus.fleets.inline import InlineFleet
from ludus.learn.learner import Learner
from ludus.replay.chunk_layout import ChunkLayout
from ludus.types import flat_rows, tree_leaves
from tests.contract.curious import Config, Curious

HOST, CAPTURED = (choose_runner("cpu", captured=c, must_capture=c) for c in (False, True))


class Played:
    """A collector, its net, and `rows(n)` for its next chunk."""

    def __init__(self, *, memory=8, runner=HOST, pipelined=False, **env) -> None:
        self.algorithm = Curious(Config(memory=memory))
        settings = {"id": "CartPole-v1", "num": 3, "max_episode_steps": 3, **env}
        envs = make_envs(EnvConfig(**settings), seed=3)
        self.it = Collector(self.algorithm, envs, seed=3, pipelined=pipelined, runner=runner)
        self.net = Learner(self.algorithm, envs.spec, seed=3).net
        self.values = Values(self.algorithm.plan, 1000).at(0)

    def collect(self, rows, stopping=lambda: False):
        return self.it.collect(self.net, rows, self.values, stopping)

    @property
    def counts(self) -> np.ndarray:
        return self.it.state()["lasting.counts"]


def test_a_plain_state_is_stored() -> None:
    state = (torch.zeros(2), torch.ones(2))
    assert stored_state(state) is state and lasting_state(state) == ()
    whole = ActorState(state, private=torch.zeros(2, 9), lasting=torch.ones(2))
    assert stored_state(whole) is state and lasting_state(whole) is whole.lasting


@pytest.mark.parametrize("runner", [HOST, CAPTURED])
def test_the_size_of_a_chunk_does_not_depend_on_the_episodic_memory(runner) -> None:
    sizes = []
    for memory in (1, 4000):
        played = Played(memory=memory, runner=runner)
        played.it.barrier(0)
        rows = played.collect(5).chunk.rows
        assert isinstance(rows.state, torch.Tensor) and rows.state.shape == (3,)
        tensors = [*flat_rows(rows).values(), *tree_leaves(rows.state)]
        layout = ChunkLayout.of(rows_spec(played), {}, rows.state, 5, 3)
        shared = sum(int(np.prod(shape)) for shape, _ in layout.fields.values())
        sizes.append((sum(x.numel() * x.element_size() for x in tensors), shared))
        played.it.close()
    assert sizes[0] == sizes[1]


def rows_spec(played: Played):
    return played.it.spec


@pytest.mark.parametrize("runner", [HOST, CAPTURED])
@pytest.mark.parametrize("pipelined", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_lasting_state_survives_episodes_and_barriers(groups, pipelined, runner) -> None:
    played = Played(groups=groups, pipelined=pipelined, runner=runner)
    played.it.barrier(0)
    first = played.collect(8 if pipelined else 9).chunk.rows
    counted = first.first[:-1].sum(0).numpy()  # one pull for each episode
    assert not pipelined or first.first[-1].all(), "the row that is dropped opens an episode"
    assert (counted > 1).all()
    assert played.it.barrier(1), "episodes were cut"
    assert (played.counts.sum(1) == counted).all(), "nothing of a dropped row stays"
    private = played.it.runner.state(0).private
    assert (private.length == 0).all() and (private.seen == 0).all(), "begun again"
    second = played.collect(9).chunk.rows
    played.it.barrier(2)
    assert (played.counts.sum(1) == counted + second.first[:-1].sum(0).numpy()).all()
    played.it.close()


@pytest.mark.parametrize("runner", [HOST, CAPTURED])
@pytest.mark.parametrize("pipelined", [False, True])
def test_rows_that_are_given_up_leave_no_trace(pipelined, runner) -> None:
    played = Played(pipelined=pipelined, runner=runner)
    played.it.barrier(0)
    played.collect(5)
    played.it.barrier(1)
    before = played.it.state()
    left = iter([False, False, False, True])
    assert played.collect(9, lambda: next(left)) is None
    played.it.barrier(2)
    after = played.it.state()
    assert before.keys() == after.keys() and (before["lasting.counts"] > 0).any()
    for name, value in before.items():
        np.testing.assert_array_equal(value, after[name], err_msg=name)
    played.it.close()


@pytest.mark.parametrize("groups", [1, 2])
def test_a_loaded_state_continues_bit_for_bit(groups) -> None:
    one, two = (Played(groups=groups) for _ in range(2))
    one.it.barrier(0)
    one.collect(40)
    one.it.barrier(1)
    saved = one.it.state()
    want = one.collect(30)
    two.it.load_state(saved)
    assert (two.it.state()["lasting.counts"] == saved["lasting.counts"]).all()
    two.it.barrier(1)
    got = two.collect(30)
    assert torch.equal(want.chunk.rows.action, got.chunk.rows.action)
    assert want.episodes == got.episodes
    fresh = Played(groups=groups)
    fresh.it.barrier(1)
    assert fresh.collect(30).episodes != got.episodes, "the counts decide"
    for played in (one, two, fresh):
        played.it.close()


@pytest.mark.parametrize("groups", [1, 2])
def test_info_of_an_episode_is_of_its_own_arm(groups) -> None:
    """Also where other episodes follow in the same chunk, and of those that a barrier cuts."""
    played = Played(groups=groups, max_episode_steps=2)
    played.it.barrier(0)
    got = played.collect(40)
    rows, cut = got.chunk.rows, played.it.barrier(1)
    played.it.close()
    arms: dict[int, list[float]] = {n: [] for n in range(3)}
    for t, n in (~rows.mask).nonzero().tolist():
        arms[n].append(float(rows.extras["arm"][t - 1, n]))
    assert len({arm for row in arms.values() for arm in row}) > 1
    for n in range(3):
        infos = [e.info for e in got.episodes if e.env == n]
        assert [info["arm"] for info in infos][: len(arms[n])] == arms[n]
        assert [info["pulls"] for info in infos] == [float(k + 1) for k in range(len(infos))]
    assert all(e.info["arm"] == float(rows.extras["arm"][-1, e.env]) for e in cut)


def test_fleets_join_and_split_the_state_of_their_actors() -> None:
    algorithm = Curious(Config())
    config = EnvConfig(id="CartPole-v1", num=2, max_episode_steps=2)
    envs = [make_envs(config, seed=0, first_env=first) for first in (0, 2)]
    fleet = InlineFleet(algorithm, envs, algorithm.plan.for_envs(4), seed=0)
    fleet.barrier(0)
    fleet.publish(Learner(algorithm, envs[0].spec, seed=0).net)
    for _ in range(4):
        fleet.poll(Values(algorithm.plan, 10).at(0))
    state = fleet.state()
    assert state["lasting.counts"].shape == (4, 3) and state["lasting.counts"].sum() > 8
    for part, collector in zip(split_state(state, 2), fleet.collectors, strict=True):
        np.testing.assert_array_equal(part["lasting.scores"], collector.state()["lasting.scores"])
    assert join_state([state, {}]) == {}
    fleet.load_state({k: v + 1 for k, v in state.items()})
    fleet.barrier(1)
    np.testing.assert_array_equal(fleet.state()["lasting.counts"], state["lasting.counts"] + 1)
    fleet.close()
