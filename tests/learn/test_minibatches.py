"""Plan.minibatch_over: rows in any order, or whole environments in the order of time."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from ludus.compute.cuda_graph import Streams
from ludus.contract import Fifo, Unroll, Values
from ludus.errors import LudusError
from ludus.learn.captured import build_updates, why_eager
from ludus.learn.eager import EagerUpdates
from ludus.learn.learner import Learner
from ludus.schedules import ramp
from ludus.types import Loss, Sample
from tests.learn.toy import SPEC, Toy

T, B = 3, 6


class Batch(NamedTuple):
    obs: Tensor  # [T+1, B, 3]
    mask: Tensor
    action_mask: Tensor | None
    state: Any  # leaves [B, 2]


class Recurrent(Toy):
    """Records what it is given; its loss is [T, b]."""

    def optimizer(self, net):
        return torch.optim.SGD(net.parameters(), lr=0.0, fused=True)

    def loss(self, net, batch, ctx):
        two = net["online"]
        self.seen.append((batch.obs.clone(), batch.mask.clone(), batch.state["h"].clone()))
        start = batch.state["h"].sum(-1)
        value = (batch.obs[:-1] @ two.a + start) * (batch.obs[1:] @ two.b)
        return Loss(value)


def sample() -> Sample:
    env = torch.arange(float(B))
    obs = (torch.arange(float(T + 1))[:, None] + 10 * env)[..., None].expand(T + 1, B, 3) / 50
    mask = torch.ones(T, B, dtype=torch.bool)
    mask[1, 4] = False
    state = {"h": env[:, None].expand(B, 2) / 50, "none": ()}
    return Sample(Batch(obs.clone(), mask, None, state), torch.arange(B), torch.ones(B))


class Once:
    """A queue with two samples."""

    def __init__(self, plan) -> None:
        self.plan, self.left = plan, 2

    def ready(self):
        return self.left > 0

    def sample(self):
        self.left -= 1
        return sample()


def learner(**plan) -> Learner:
    given = {"view": Unroll(T), "sampler": Fifo(), "batch": B, "schedules": {"lr": ramp(0.01)}}
    return Learner(Recurrent(**{**given, "minibatch_over": "envs", **plan}), SPEC, seed=3)


@pytest.mark.parametrize(("minibatches", "sizes"), [(2, [3, 3]), (4, [2, 2, 1, 1]), (1, [6])])
def test_every_environment_once_per_epoch_with_its_time_and_state(minibatches, sizes) -> None:
    it = learner(epochs=3, minibatches=minibatches)
    it.learn(sample(), Values(it.plan, 100).at(0))
    seen = it.algorithm.seen
    assert [obs.shape[1] for obs, _, _ in seen] == sizes * 3 and it.updates == len(seen)
    orders = []
    for obs, mask, h in seen:
        assert obs.shape[0] == T + 1 and mask.shape == (T, obs.shape[1])
        envs = (obs[0, :, 0] * 5).round()
        torch.testing.assert_close(h[:, 0] * 50, envs)
        torch.testing.assert_close(obs[..., 0] * 50, torch.arange(T + 1.0)[:, None] + 10 * envs)
        assert (~mask).sum() == (envs == 4).sum()
        orders.append(envs)
    epochs = [torch.cat(orders[i : i + minibatches]) for i in range(0, len(orders), minibatches)]
    assert all(sorted(e.tolist()) == list(range(B)) for e in epochs)
    assert len({tuple(e.tolist()) for e in epochs}) == 3, "a new order each time"


def test_one_epoch_of_one_minibatch_is_the_sample() -> None:
    it = learner()
    it.learn(sample(), Values(it.plan, 100).at(0))
    assert torch.equal(it.algorithm.seen[0][0], sample().batch.obs)


@pytest.mark.parametrize("minibatches", [2, 3])
def test_captured_environments_equal_eager_ones(minibatches) -> None:
    weights, metrics = [], []
    for capture in (True, False):
        it = learner(epochs=2, minibatches=minibatches)
        updates = build_updates(Once(it.plan), it, Streams(it.device), capture="on", overlap=False)
        assert updates.mode.startswith("emulated")
        if not capture:
            updates = EagerUpdates(Once(it.plan), it)
        updates.start(Values(it.plan, 100).at(0))
        updates.finish()
        assert it.updates == 4 * minibatches
        weights.append(torch.cat([p.detach() for p in it.params]))
        metrics.append(it.take_metrics())
    torch.testing.assert_close(*weights)
    assert not torch.equal(weights[0], torch.ones(6))
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-5)


def test_environments_that_do_not_divide_are_learned_eagerly() -> None:
    it = learner(minibatches=4)
    assert why_eager(Once(it.plan), it) == "6 envs do not divide into 4 equal minibatches"
    it = learner(minibatches=9, minibatch_over="rows")  # 18 rows
    assert why_eager(Once(it.plan), it) is None


def test_more_minibatches_than_environments_are_refused() -> None:
    plan = Toy(view=Unroll(8), sampler=Fifo(), batch=0, minibatches=4, minibatch_over="envs").plan
    assert plan.for_envs(4).batch == 4
    with pytest.raises(LudusError) as caught:
        plan.for_envs(3)
    assert caught.value.code == "E104" and "3 environments" in str(caught.value)
