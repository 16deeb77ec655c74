"""A2C and one-step actor-critic on numbers small enough to check."""

from __future__ import annotations

import math

import pytest
import torch

from ludus.algos.a2c import A2C, Config
from ludus.learn.learner import Learner
from ludus.settings.resolve import Request, resolve
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
from tests.truth.episodes import by_piece
from tests.truth.policy import entropy, policy_gradient, softmax, standardized
from tests.truth.returns import gae, n_step

ACTIONS = {
    "discrete": Discrete(3),
    "continuous": Continuous((2,), (-1.0, -1.0), (1.0, 1.0)),
    "multi": MultiDiscrete((2, 3)),
}
ROWS, ENVS, GAMMA = 6, 3, 0.9


def make(action=ACTIONS["discrete"], **settings):
    spec = EnvSpec("toy", ArraySpec((3,)), action)
    algorithm = A2C(Config(gamma=GAMMA, n_steps=ROWS, **settings))
    torch.manual_seed(0)
    net = algorithm.build(spec)
    for p in net.parameters():
        p.data.add_(0.3 * torch.randn(p.shape))
    return algorithm, net, Ctx(torch.Generator().manual_seed(1), spec)


def fragment(spec: EnvSpec) -> Traj:
    """Environment 1 terminates after row 2, environment 2 is truncated after row 3."""
    g = torch.Generator().manual_seed(2)
    obs = torch.randn(ROWS + 1, ENVS, 3, generator=g)
    last = torch.zeros(ROWS, ENVS, dtype=torch.bool)
    last[2, 1] = last[3, 2] = True
    mask = torch.ones(ROWS, ENVS, dtype=torch.bool)
    mask[3, 1] = mask[4, 2] = False
    discount = torch.ones(ROWS, ENVS)
    discount[2, 1] = 0.0
    first = torch.zeros(ROWS + 1, ENVS, dtype=torch.bool)
    first[4, 1] = first[5, 2] = True
    reward = torch.where(mask, torch.randn(ROWS, ENVS, generator=g), torch.nan)
    if isinstance(spec.action, Continuous):
        action = torch.randn(ROWS, ENVS, 2, generator=g)
    elif isinstance(spec.action, MultiDiscrete):
        action = torch.randint(2, (ROWS, ENVS, 2), generator=g)
    else:
        action = torch.randint(3, (ROWS, ENVS), generator=g)
    return Traj(obs, action, reward, discount, last, first, mask)


def log_prob_and_entropy(spec: EnvSpec, params: list[float], action) -> tuple[float, float]:
    if isinstance(spec.action, Discrete):
        return math.log(softmax(params)[int(action)]), entropy(params)
    if isinstance(spec.action, MultiDiscrete):
        one, two = params[:2], params[2:]
        chosen = softmax(one)[int(action[0])] * softmax(two)[int(action[1])]
        return math.log(chosen), entropy(one) + entropy(two)
    log_p = bits = 0.0
    for mean, log_std, a in zip(params[:2], params[2:], action.tolist(), strict=True):
        sigma = math.exp(log_std)
        density = math.exp(-((a - mean) ** 2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))
        log_p += math.log(density)
        bits += 0.5 * math.log(2 * math.pi * math.e * sigma**2)
    return log_p, bits


def written_out(algorithm, net, b: Traj, spec: EnvSpec) -> list[list[float | None]]:
    """The loss of every row, None for dummies; [ENVS][ROWS]."""
    cfg, online = algorithm.cfg, net["online"]
    with torch.no_grad():
        value = online.values(b.obs.flatten(0, 1)).view(ROWS + 1, ENVS)
        params = online.policy(online.torso(b.obs))
    columns = []
    for c in range(ENVS):
        r, last, mask = (x[:, c].tolist() for x in (b.reward, b.last, b.mask))
        g, v = (GAMMA * b.discount[:, c]).tolist(), value[:, c].tolist()
        lam = cfg.gae_lambda
        columns.append(by_piece(lambda r, g, v: gae(r, g, v, lam), last, mask, (r, g), (v,)))  # noqa: B023
        if lam == 1:  # the same by the other definition: the n-step return less the value
            whole = by_piece(lambda r, g, v: n_step(r, g, v, ROWS), last, mask, (r, g), (v,))
            for t, ret in enumerate(whole):
                assert ret is None or columns[c][t] == pytest.approx(ret - v[t], abs=1e-4)
    real = [(t, c) for c in range(ENVS) for t in range(ROWS) if columns[c][t] is not None]
    raw = [columns[c][t] for t, c in real]
    used = standardized(raw) if cfg.normalize_advantage else raw
    rows: list[list[float | None]] = [[None] * ROWS for _ in range(ENVS)]
    for (t, c), error, advantage in zip(real, raw, used, strict=True):
        log_p, bits = log_prob_and_entropy(spec, params[t, c].tolist(), b.action[t, c])
        rows[c][t] = policy_gradient(
            log_p, advantage, error, bits, cfg.value_cost, cfg.entropy_cost
        )
    return rows


@pytest.mark.accept(23)
@pytest.mark.accept(150)
@pytest.mark.parametrize("kind", ACTIONS)
@pytest.mark.parametrize(
    "settings",
    [{}, {"gae_lambda": 0.7}, {"normalize_advantage": True}, {"shared_torso": True}],
    ids=["n-step", "lambda", "normalized", "shared torso"],
)
def test_the_loss_is_the_equation_written_out(kind, settings) -> None:
    algorithm, net, ctx = make(ACTIONS[kind], value_cost=0.7, entropy_cost=0.02, **settings)
    b = fragment(ctx.spec)
    got = algorithm.loss(net, b, ctx)
    want = written_out(algorithm, net, b, ctx.spec)
    for c in range(ENVS):
        for t in range(ROWS):
            if want[c][t] is not None:
                assert float(got.value[t, c].detach()) == pytest.approx(want[c][t], rel=2e-4)
    assert torch.isfinite(got.value).all(), "a dummy row's NaN does not come through"


@pytest.mark.accept(23)
def test_an_update_takes_the_mean_over_the_rows_of_all_environments_and_leaves_out_dummies() -> (
    None
):
    algorithm, _, ctx = make(entropy_cost=0.02)
    learner = Learner(algorithm, ctx.spec, seed=0)
    b = fragment(ctx.spec)
    rows = written_out(algorithm, learner.net, b, ctx.spec)
    real = [x for column in rows for x in column if x is not None]
    learner.learn(Sample(b, torch.arange(ENVS), torch.ones(ENVS)), {"lr": torch.tensor(0.0)})
    assert len(real) == ROWS * ENVS - 2
    assert learner.take_metrics()["loss"] == pytest.approx(sum(real) / len(real), rel=1e-3)


@pytest.mark.accept(22)
def test_one_step_actor_critic_follows_the_td_error() -> None:
    """Sutton & Barto 2018, section 13.5: δ = r + γ V(s') - V(s), for the policy and the value."""
    cfg = resolve(Request("actor-critic", "CartPole-v1", preset="none", environ={})).config.algo
    assert cfg.n_steps == 1 and cfg.lr_value is not None and cfg.lr_value != cfg.lr
    algorithm, net, ctx = make(value_cost=0.5)
    b = fragment(ctx.spec)
    with torch.no_grad():
        v = net["online"].values(b.obs.flatten(0, 1)).view(ROWS + 1, ENVS)
    for t in range(3):
        one = Traj(*(x[t : t + 2] if n in ("obs", "first") else x[t : t + 1] if x is not None
                     and hasattr(x, "shape") else x for n, x in b._asdict().items()))  # fmt: skip
        dist, _ = net["online"].unroll(one.obs, None)
        delta = one.reward + GAMMA * one.discount * v[t + 1] - v[t]
        want = -dist.log_prob(one.action) * delta + 0.5 * delta**2
        torch.testing.assert_close(algorithm.loss(net, one, ctx).value, want, rtol=1e-4, atol=1e-5)


def test_the_advantage_is_a_constant_for_the_policy() -> None:
    algorithm, net, ctx = make(value_cost=0.0)
    algorithm.loss(net, fragment(ctx.spec), ctx).value.sum().backward()
    online = net["online"]
    assert all(p.grad is None or not p.grad.any() for p in online.value_parameters())
    assert any(p.grad is not None and p.grad.any() for p in online.policy_parameters())


def test_the_bootstrapped_value_gets_no_gradient() -> None:
    """Only V(s_t) of the rows is regressed: the semi-gradient."""
    algorithm, net, ctx = make()
    b = fragment(ctx.spec)
    obs = b.obs.clone().requires_grad_()
    algorithm.loss(net, b._replace(obs=obs), ctx).value.sum().backward()
    assert obs.grad is not None and not obs.grad[-1].any() and obs.grad[:-1].any()


@pytest.mark.parametrize("kind", ACTIONS)
def test_the_entropy_bonus_raises_entropy(kind) -> None:
    algorithm, net, ctx = make(ACTIONS[kind], entropy_cost=1.0, value_cost=0.0)
    b = fragment(ctx.spec)
    flat = b._replace(reward=torch.zeros_like(b.reward), discount=torch.zeros_like(b.discount))
    for p in net["online"].value.parameters():
        p.data.zero_()  # no advantage: the bonus is alone
    loss = algorithm.loss(net, flat, ctx)
    loss.value.sum().backward()
    with torch.no_grad():
        for p in net["online"].policy_parameters():
            p.sub_(0.01 * p.grad)
    assert algorithm.loss(net, flat, ctx).metrics["entropy"] > loss.metrics["entropy"] + 1e-4


@pytest.mark.accept(22)
def test_the_value_has_its_own_learning_rate() -> None:
    algorithm = A2C(Config(lr=1e-3, lr_value=5e-3))
    learner = Learner(algorithm, EnvSpec("toy", ArraySpec((3,)), Discrete(3)), seed=0)
    learner.ctx.values = {"lr": torch.tensor(1e-3), "lr_value": torch.tensor(5e-3)}
    rates = {g["name"]: float(learner.rate(g)) for g in learner.optimizer.param_groups}
    assert rates == pytest.approx({"policy": 1e-3, "value": 5e-3})
    in_groups = [p for g in learner.optimizer.param_groups for p in g["params"]]
    assert {id(p) for p in in_groups} == {id(p) for p in learner.net.parameters()}
    one = A2C(Config())
    assert len(one.optimizer(one.build(learner.ctx.spec)).param_groups) == 1


@pytest.mark.parametrize("settings", [{"lr_value": 1e-3}, {"clip_by": "group"}])
def test_a_shared_torso_has_one_learning_rate(settings) -> None:
    with pytest.raises(ValueError, match="shared_torso"):
        Config(shared_torso=True, **settings)


def test_evaluation_takes_the_mode_and_training_samples() -> None:
    algorithm, net, ctx = make()
    n, flags, zeros = 400, torch.zeros(400, dtype=torch.bool), torch.zeros(400)
    step = Step(torch.ones(n, 3), flags, flags, zeros, zeros, zeros, flags, None)
    best = net["online"].dist(step.obs).parts[0].argmax(-1)
    assert len(algorithm.act(net, step, (), ctx)[0].unique()) == 3
    ctx.evaluating = True
    assert torch.equal(algorithm.act(net, step, (), ctx)[0], best)


@pytest.mark.accept(23)
def test_an_update_waits_for_n_steps_of_every_environment(tmp_path) -> None:
    cfg = tiny("a2c", "ludus/Identity-v0", "env.num=4", "n_steps=5", "steps=200")
    result = run(cfg, tmp_path)
    plan = A2C(cfg.algo).plan.for_envs(4)
    assert (plan.batch, plan.chunk, plan.view.length) == (4, 5, 5)
    rows = result.updates * 4 * 5  # dummy rows of resets count here, not as steps
    assert rows >= result.step > 0.8 * rows
