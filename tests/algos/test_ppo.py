"""PPO's loss and preparation on numbers small enough to check."""

from __future__ import annotations

import pytest
import torch

from ludus.algos.ppo import PPO, Batch, Config
from ludus.contract import Values
from ludus.learn.learner import Learner
from ludus.schedules import ramp
from ludus.types import (
    ArraySpec,
    Continuous,
    Ctx,
    Discrete,
    EnvSpec,
    MultiDiscrete,
    Sample,
    Step,
    Traj,
)
from tests.contract.tiny import run, tiny

ACTIONS = {
    "discrete": Discrete(3),
    "continuous": Continuous((2,), (-1.0, -1.0), (1.0, 1.0)),
    "multi": MultiDiscrete((2, 3)),
}


def make(action, **settings):
    spec = EnvSpec("toy", ArraySpec((3,)), action)
    algorithm = PPO(Config(**settings))
    torch.manual_seed(0)
    net = algorithm.build(spec)
    for p in net.parameters():
        p.data.add_(0.1 * torch.randn(p.shape))
    ctx = Ctx(torch.Generator().manual_seed(1), spec, {"clip": torch.tensor(0.2)})
    return algorithm, net, ctx, spec


def rollout(algorithm, net, ctx, steps=6, slots=4) -> Traj:
    g = torch.Generator().manual_seed(2)
    obs = torch.randn(steps + 1, slots, 3, generator=g)
    flags = torch.zeros(slots, dtype=torch.bool)
    actions, log_probs = [], []
    for t in range(steps):
        step = Step(obs[t], flags, flags, *[torch.zeros(slots)] * 3, flags, None)
        action, extras, _ = algorithm.act(net, step, (), ctx)
        actions.append(action)
        log_probs.append(extras["log_prob"])
    last = torch.zeros(steps, slots, dtype=torch.bool)
    mask = torch.ones(steps, slots, dtype=torch.bool)
    last[2, 1] = True
    mask[3, 1] = False
    discount = torch.ones(steps, slots)
    discount[2, 1] = 0.0
    first = torch.zeros(steps + 1, slots, dtype=torch.bool)
    first[0] = first[4, 1] = True
    return Traj(
        obs,
        torch.stack(actions),
        torch.randn(steps, slots, generator=g),
        discount,
        last,
        first,
        mask,
        None,
        {"log_prob": torch.stack(log_probs).detach()},
    )


def flat(batch: Batch) -> Batch:
    return Batch(*(x if x is None else x.flatten(0, 1) for x in batch))


@pytest.mark.parametrize("kind", ACTIONS)
def test_first_minibatch_has_ratio_one(kind) -> None:
    algorithm, net, ctx, _ = make(ACTIONS[kind])
    with torch.no_grad():
        batch = flat(algorithm.prepare(net, rollout(algorithm, net, ctx), ctx))
    loss = algorithm.loss(net, batch, ctx)
    assert float(loss.metrics["clip_fraction"]) == 0.0
    assert float(loss.metrics["approx_kl"]) == pytest.approx(0.0, abs=1e-6)
    dist, _ = net["online"].both(batch.obs)
    torch.testing.assert_close(dist.log_prob(batch.action), batch.log_prob, atol=1e-5, rtol=1e-5)


@pytest.mark.accept(29)
def test_gae_across_an_episode_end_is_two_episodes() -> None:
    algorithm, net, ctx, _ = make(Discrete(3), gamma=0.9, gae_lambda=0.8)
    b = rollout(algorithm, net, ctx)
    batch = algorithm.prepare(net, b, ctx)
    with torch.no_grad():
        v = torch.stack([net["online"].values(o) for o in b.obs])
    adv = [0.0] * 7
    for t in (2, 1, 0):  # column 1: the episode ends by termination at row 2
        nxt = 0.0 if t == 2 else float(v[t + 1, 1])
        delta = float(b.reward[t, 1]) + 0.9 * nxt - float(v[t, 1])
        adv[t] = delta + (0.0 if t == 2 else 0.9 * 0.8 * adv[t + 1])
    for t in (5, 4):  # and begins anew at row 4
        delta = float(b.reward[t, 1]) + 0.9 * float(v[t + 1, 1]) - float(v[t, 1])
        adv[t] = delta + (0.0 if t == 5 else 0.9 * 0.8 * adv[t + 1])
    got = batch.advantage[:, 1].tolist()
    for t in (0, 1, 2, 4, 5):
        assert got[t] == pytest.approx(adv[t], abs=1e-5)
    torch.testing.assert_close(batch.target, batch.advantage + v[:-1])


def test_masked_rows_do_not_touch_the_normalised_advantages() -> None:
    algorithm, net, ctx, _ = make(Discrete(3))
    with torch.no_grad():
        batch = flat(algorithm.prepare(net, rollout(algorithm, net, ctx), ctx))
    wild = batch._replace(advantage=torch.where(batch.mask, batch.advantage, 1e6))
    keep = batch.mask
    a, b = (algorithm.loss(net, x, ctx).value[keep] for x in (batch, wild))
    torch.testing.assert_close(a, b)


@pytest.mark.accept(29)
@pytest.mark.accept(100)
def test_clipping_stops_the_gradient_beyond_the_range_and_follows_its_schedule() -> None:
    settings = {"normalize_advantage": False, "value_cost": 0.0, "clip": ramp("1.5->0.2@100")}
    algorithm, net, ctx, _ = make(Discrete(3), **settings)
    with torch.no_grad():
        batch = flat(algorithm.prepare(net, rollout(algorithm, net, ctx), ctx))
    # The old policy found every action half as likely: ratio 2, positive advantage.
    batch = batch._replace(log_prob=batch.log_prob - 0.6931, advantage=torch.ones(24))
    for step, moves in ((0, True), (30, True), (100, False)):
        ctx.values = Values(algorithm.plan, 1000).at(step)
        loss = algorithm.loss(net, batch, ctx)
        net.zero_grad()
        loss.value.sum().backward()
        size = sum(float(p.grad.abs().sum()) for p in net["online"].policy.parameters())
        assert (size > 1e-6) is moves
        assert (float(loss.metrics["clip_fraction"]) > 0.5) is not moves


@pytest.mark.accept(104)
def test_policy_value_and_entropy_costs_scale_their_terms() -> None:
    def total(**settings):
        algorithm, net, ctx, _ = make(Discrete(3), **settings)
        with torch.no_grad():
            batch = flat(algorithm.prepare(net, rollout(algorithm, net, ctx), ctx))
            loss = algorithm.loss(net, batch, ctx)
        return loss.value, loss.metrics["entropy"], batch

    plain, entropy, batch = total(value_cost=0.0, entropy_cost=0.0)
    with_entropy = total(value_cost=0.0, entropy_cost=0.5)[0]
    with_value = total(value_cost=2.0, entropy_cost=0.0)[0]
    keep = batch.mask
    assert float((plain - with_entropy)[keep].mean()) == pytest.approx(
        0.5 * float(entropy), rel=1e-4
    )
    error = 0.5 * (batch.value - batch.target) ** 2
    torch.testing.assert_close((with_value - plain)[keep], 2.0 * error[keep], atol=1e-5, rtol=1e-4)
    assert plain[keep].abs().sum() > 0.1, "else the factor below would prove nothing"
    with_policy = total(value_cost=0.0, entropy_cost=0.0, policy_cost=3.0)[0]
    torch.testing.assert_close(with_policy[keep], 3.0 * plain[keep])
    nothing = total(value_cost=0.0, entropy_cost=0.0, policy_cost=0.0)[0]
    assert torch.equal(nothing[keep], torch.zeros_like(nothing[keep]))


@pytest.mark.accept(29)
@pytest.mark.parametrize(("epochs", "minibatches"), [(1, 1), (3, 1), (1, 4), (3, 5)])
def test_epochs_and_minibatches_use_every_row_once_per_epoch(epochs, minibatches) -> None:
    """24 rows: each epoch cuts all of them, in an order of its own, into equal parts."""

    class Watched(PPO):
        def loss(self, net, b, ctx):
            seen.append(b.obs.flatten(0, -2)[:, 0].tolist())
            return super().loss(net, b, ctx)

    algorithm, net, ctx, spec = make(Discrete(3))
    b, seen = rollout(algorithm, net, ctx), []
    it = Learner(Watched(Config(rollout=6, epochs=epochs, minibatches=minibatches)), spec, seed=1)
    it.learn(Sample(b, torch.arange(4), torch.ones(4)), Values(it.plan, 100).at(0))
    # One epoch of one minibatch is a batch of [T,B], for which `loss` calls itself.
    assert it.updates == epochs * minibatches
    calls = [x for x in seen if (epochs, minibatches) != (1, 1)] or seen[-1:]
    sizes = [len(range(i, 24, minibatches)) for i in range(minibatches)]
    assert [len(x) for x in calls] == sizes * epochs
    parts = range(0, len(calls), minibatches)
    orders = [[x for part in calls[i : i + minibatches] for x in part] for i in parts]
    rows = b.obs[:-1, :, 0].flatten().tolist()
    assert all(sorted(order) == sorted(rows) for order in orders)
    if epochs * minibatches > 1:
        assert len({tuple(order) for order in (*orders, rows)}) == epochs + 1


def test_value_clip_takes_the_larger_error() -> None:
    algorithm, *_ = make(Discrete(3), value_clip=0.1)
    b = Batch(*[torch.zeros(1)] * 4, torch.tensor([1.0]), torch.tensor([0.0]), torch.ones(1), None)
    far = algorithm._value_loss(torch.tensor([0.9]), b)  # moved to the target beyond 0.1
    assert float(far) == pytest.approx(0.5 * 0.9**2)


def test_evaluation_takes_the_mode() -> None:
    for kind, action in ACTIONS.items():
        algorithm, net, ctx, _ = make(action)
        ctx.evaluating = True
        flags = torch.zeros(5, dtype=torch.bool)
        step = Step(torch.randn(5, 3), flags, flags, *[torch.zeros(5)] * 3, flags, None)
        one, _, _ = algorithm.act(net, step, (), ctx)
        two, _, _ = algorithm.act(net, step, (), ctx)
        assert torch.equal(one, two), kind


def test_the_advantage_of_a_single_row_is_zero_when_normalised() -> None:
    """Nothing to compare it with: whatever it is, it must not move the policy."""
    losses = []
    for advantage in (-50.0, 3.0):
        algorithm, net, ctx, _ = make(Discrete(3), value_cost=0.0)
        one = torch.zeros(4)
        mask = torch.tensor([True, False, False, False])
        batch = Batch(torch.ones(4, 3), torch.zeros(4, dtype=torch.int64), one - 1.0,
                      one + advantage, one, one, mask, None)  # fmt: skip
        losses.append(algorithm.loss(net, batch, ctx).value[0].item())
    assert losses == [0.0, 0.0]


def test_a_sample_that_is_used_whole_gives_what_its_rows_give():
    algorithm, net, ctx, _ = make(Discrete(3))
    batch = algorithm.prepare(net, rollout(algorithm, net, ctx), ctx)
    whole, rows = (algorithm.loss(net, b, ctx) for b in (batch, flat(batch)))
    assert whole.value.shape == batch.mask.shape, "masks are applied row by row"
    torch.testing.assert_close(whole.value.flatten(), rows.value)


@pytest.mark.parametrize("capture", ["on", "off"])
def test_images_are_learned_from_in_one_epoch_of_one_minibatch(tmp_path, capture):
    settings = ("epochs=1", "minibatches=1", "steps=64", f"run.capture={capture}")
    result = run(tiny("ppo", "ludus/IdentityPixels-v0", "run.device=cpu", *settings), tmp_path)
    assert result.updates >= 2
