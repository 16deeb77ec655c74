"""PQN: targets against a slow truth, the loss, and what is absent."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ludus.algos.pqn import PQN, Batch, Config
from ludus.contract import Fifo, Unroll
from ludus.errors import LudusError
from ludus.learn.learner import Learner
from ludus.nets import CNN, MLP, Nature, build_torso
from ludus.optim import RectifiedAdam
from ludus.types import ArraySpec, Continuous, Ctx, Discrete, EnvSpec, Sample, Step, Traj
from tests.truth.returns import peng_q_lambda

SPEC = EnvSpec("toy", ArraySpec((3,)), Discrete(4))
STEPS, ENVS = 7, 3


def make(**settings):
    algorithm = PQN(Config(torso=MLP(hidden=(8,), layer_norm=True), rollout=STEPS, **settings))
    torch.manual_seed(0)
    net = algorithm.build(SPEC)
    values = {"epsilon": torch.tensor(0.3), "lr": torch.tensor(1e-3)}
    return algorithm, net, Ctx(torch.Generator().manual_seed(1), SPEC, values)


def rollout(masks: bool = False) -> Traj:
    """Environment 0 never ends; 1 is truncated at row 2 and terminates at row 5; 2 terminates at
    row 0 and is truncated at the last row. Dummy rows hold numbers that would show."""
    g = torch.Generator().manual_seed(2)
    obs = torch.randn(STEPS + 1, ENVS, 3, generator=g)
    reward = torch.randn(STEPS, ENVS, generator=g)
    action = torch.randint(4, (STEPS, ENVS), generator=g)
    last = torch.zeros(STEPS, ENVS, dtype=torch.bool)
    first = torch.zeros(STEPS + 1, ENVS, dtype=torch.bool)
    first[0] = True
    discount = torch.ones(STEPS, ENVS)
    mask = torch.ones(STEPS, ENVS, dtype=torch.bool)
    for t, env, terminated in ((2, 1, False), (5, 1, True), (0, 2, True), (6, 2, False)):
        last[t, env], discount[t, env] = True, float(not terminated)
        if t + 1 < STEPS:
            mask[t + 1, env], first[t + 2, env] = False, True
            reward[t + 1, env] = 1e6
    allowed = torch.rand(STEPS + 1, ENVS, 4, generator=g) < 0.6 if masks else None
    if allowed is not None:
        allowed[..., 1] = True
    return Traj(obs, action, reward, discount, last, first, mask, allowed)


def best_values(net, b: Traj) -> list[list[float]]:
    found = []
    for t in range(STEPS + 1):
        q = net["online"](b.obs[t]).q.detach()
        if b.action_mask is not None:
            q = q.masked_fill(~b.action_mask[t], -torch.inf)
        found.append(q.max(-1).values.tolist())
    return found


@pytest.mark.accept(150)
@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize("lam", [0.0, 0.65, 1.0])
def test_targets_equal_the_recursion_with_every_kind_of_end(lam, masks) -> None:
    algorithm, net, ctx = make(q_lambda=lam, gamma=0.9)
    b = rollout(masks)
    with torch.no_grad():
        target = algorithm.prepare(net, b, ctx).target
    best = best_values(net, b)
    for t, env in b.mask.nonzero().tolist():
        columns = [x[:, env].tolist() for x in (b.reward, b.discount, b.last)]
        want = peng_q_lambda(*columns, [row[env] for row in best], 0.9, lam, t)
        assert float(target[t, env]) == pytest.approx(want, abs=1e-4), (t, env)
    assert target[b.mask].abs().max() < 100, "a dummy row's reward reaches no other row"


def test_without_lambda_it_is_one_step_and_with_all_of_it_the_sum_of_rewards() -> None:
    b = rollout()
    one, net, ctx = make(q_lambda=0.0, gamma=0.9)
    whole, _, _ = make(q_lambda=1.0, gamma=0.9)
    best = torch.tensor(best_values(net, b))
    with torch.no_grad():
        step, full = one.prepare(net, b, ctx).target, whole.prepare(net, b, ctx).target
    torch.testing.assert_close(step, b.reward + 0.9 * b.discount * best[1:])
    powers = 0.9 ** torch.arange(STEPS)
    want = (powers * b.reward[:, 0]).sum() + 0.9**STEPS * best[-1, 0]
    assert float(full[0, 0]) == pytest.approx(float(want), abs=1e-4)
    truncated = b.reward[2, 1] + 0.9 * best[3, 1]  # bootstraps from the true last observation
    assert float(full[2, 1]) == pytest.approx(float(truncated), abs=1e-4)
    assert float(full[5, 1]) == pytest.approx(float(b.reward[5, 1]), abs=1e-6)


@pytest.mark.accept(150)
def test_the_loss_is_half_the_square_and_dummy_rows_are_inert() -> None:
    algorithm, net, ctx = make()
    b = rollout()
    b.reward[~b.mask] = torch.nan
    batch = algorithm.prepare(net, b, ctx)
    flat = Batch(*(x.flatten(0, 1) for x in batch))
    loss = algorithm.loss(net, flat, ctx)
    q = net["online"](flat.obs).q.gather(1, flat.action[:, None])[:, 0]
    keep = flat.mask
    torch.testing.assert_close(loss.value[keep], 0.5 * (flat.target - q)[keep] ** 2)
    loss.value.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
    assert float(loss.metrics["q"]) == pytest.approx(float(q[keep].detach().mean()), abs=1e-5)
    whole = algorithm.loss(net, batch, ctx)
    assert whole.value.shape == b.mask.shape
    torch.testing.assert_close(whole.value.flatten(), loss.value)


def test_targets_stay_fixed_during_the_epochs() -> None:
    targets = []

    class Watched(PQN):
        def loss(self, net, b, ctx):
            targets.append(b.target)
            return super().loss(net, b, ctx)

    torso = MLP(hidden=(8,), layer_norm=True)
    cfg = Config(torso=torso, rollout=STEPS, epochs=3, minibatches=3, lr=0.1)
    it = Learner(Watched(cfg), SPEC, seed=0)
    values = {"epsilon": torch.tensor(0.0), "lr": torch.tensor(0.1)}
    it.learn(Sample(rollout(), torch.arange(ENVS), torch.ones(ENVS)), values)
    assert it.updates == 9 and len(targets) == 9
    epochs = [torch.cat(targets[i : i + 3]).sort().values for i in (0, 3, 6)]
    assert torch.equal(epochs[0], epochs[1]) and torch.equal(epochs[0], epochs[2])


def test_it_has_one_net_no_replay_and_its_papers_optimizer() -> None:
    algorithm, net, _ = make()
    assert list(net) == ["online"] and all(p.requires_grad for p in net.parameters())
    assert algorithm.plan.view == Unroll(STEPS) and isinstance(algorithm.plan.sampler, Fifo)
    assert isinstance(algorithm.optimizer(net), RectifiedAdam)


def test_actions_are_epsilon_greedy_and_allowed() -> None:
    algorithm, net, ctx = make()
    count = 4000
    obs = torch.ones(count, 3)
    flags = torch.zeros(count, dtype=torch.bool)
    allowed = torch.tensor([True, True, False, True]).expand(count, 4)
    step = Step(obs, flags, flags, *[torch.zeros(count)] * 3, flags, allowed)
    action, extras, state = algorithm.act(net, step, (), ctx)
    best = net["online"](obs[:1]).q[0].masked_fill(~allowed[0], -torch.inf).argmax()
    assert extras == {} and state == () and not (action == 2).any()
    share = float((action == best).float().mean())
    assert share == pytest.approx(0.7 + 0.3 / 3, abs=0.03)


def test_continuous_actions_are_refused() -> None:
    spec = EnvSpec("toy", ArraySpec((3,)), Continuous((1,), (-1.0,), (1.0,)))
    with pytest.raises(LudusError) as refused:
        PQN().build(spec)
    assert refused.value.code == "E204" and "pqn needs discrete actions" in str(refused.value)


@pytest.mark.parametrize("kind", ["mlp", "cnn", "nature"])
def test_every_layer_of_the_torso_is_normalised_before_its_activation(kind) -> None:
    made = {
        "mlp": (MLP(hidden=(16, 8), layer_norm=True), ArraySpec((5,))),
        "cnn": (CNN(layer_norm=True, hidden=32), ArraySpec((3, 12, 12), "uint8", layout="chw")),
        "nature": (Nature(layer_norm=True), ArraySpec((84, 84), "uint8", stack=4, layout="hw")),
    }
    cfg, leaf = made[kind]
    torso = build_torso(cfg, leaf)
    norms = [m for m in torso.modules() if isinstance(m, nn.LayerNorm)]
    layers = [m for m in torso.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    assert len(norms) == len(layers) == {"mlp": 2, "cnn": 4, "nature": 4}[kind]
    seen = []
    for norm in norms:
        norm.register_forward_hook(lambda _, __, out: seen.append(out.detach().clone()))
    if leaf.dtype == "uint8":
        x = torch.randint(256, (6, *leaf.seen_shape), dtype=torch.uint8)
    else:
        x = torch.randn(6, *leaf.seen_shape)
    out = torso(x)
    assert len(seen) == len(norms)
    for values, layer in zip(seen, layers, strict=True):
        width = layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels
        assert values.shape[-1] == width
        torch.testing.assert_close(
            values.mean(-1), torch.zeros(values.shape[:-1]), atol=1e-4, rtol=0
        )
    torch.testing.assert_close(out, seen[-1].relu())
    assert not [m for m in build_torso(MLP(), ArraySpec((5,))).modules() if m in norms]
    plain = build_torso(cfg.model_copy(update={"layer_norm": False}), leaf)
    assert not [m for m in plain.modules() if isinstance(m, nn.LayerNorm)]


def test_the_default_torsos_are_normalised() -> None:
    torso = Config().torso
    assert torso.mlp.layer_norm and torso.cnn.layer_norm
