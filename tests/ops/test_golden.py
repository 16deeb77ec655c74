"""Values computed once by rlax 0.1.9 (float32, unbatched) on the inputs in the same file."""

import json
from pathlib import Path

import pytest
import torch

from ludus import ops

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "rlax_golden.json").read_text())
# Its h⁻¹ is computed as written in the paper, which costs float32 digits.
LOOSE = {"rtol": 1e-4, "atol": 1e-4}
TIGHT = {"rtol": 1e-5, "atol": 1e-5}


def column(name):
    """An input with a batch axis of one: [T, 1, ...]."""
    return torch.tensor(GOLDEN["inputs"][name]).unsqueeze(1)


V, R, G, RHO = (column(name) for name in ("v", "rew", "disc", "rho"))
PI, MU, Q, Q_TARGET = (column(name) for name in ("pi", "mu", "q", "q_target"))
A = column("a").long()
Q_A = ops.taken(Q[:-1], A[:-1])  # the prediction that rlax subtracts from every target


def check(got, name, tolerance=TIGHT):
    expected = GOLDEN
    for key in name.split("/"):
        expected = expected[key]
    torch.testing.assert_close(got.squeeze(1), torch.tensor(expected), **tolerance)


@pytest.mark.accept(34)
@pytest.mark.parametrize(("name", "lam"), [("vtrace_lambda1", 1.0), ("vtrace_lambda0.9", 0.9)])
def test_vtrace(name, lam):
    got = ops.vtrace(V, R, G, RHO, lambda_=lam)
    check(got.vs - V[:-1], f"{name}/errors")
    check(got.advantage, f"{name}/pg_advantage")
    if lam == 1.0:
        check(got.vs, f"{name}/vs")
        follow = torch.cat([got.vs[1:], V[-1:]])
        check(R + G * follow, f"{name}/q_estimate")


def test_returns():
    check(ops.gae(R, G, V, 0.95), "gae_0.95")
    check(ops.lambda_returns(R, G, V[1:], 0.95), "lambda_returns_0.95")
    check(ops.lambda_returns(R, G, V[1:], 0.95) - V[:-1], "td_lambda_err_0.95")
    for n in (1, 3, 5):
        check(ops.n_step_returns(R, G, V[1:], n), f"n_step_returns_{n}")


def test_one_step_targets():
    check(ops.q_target(R, G, Q_TARGET[1:]) - Q_A, "q_learning")
    check(ops.sarsa_target(R, G, Q_TARGET[1:], A[1:]) - Q_A, "sarsa")


@pytest.mark.accept(2)
def test_double_q():
    check(ops.double_q_target(R, G, Q_TARGET[1:], Q[1:]) - Q_A, "double_q")


def test_q_lambda():
    check(ops.q_lambda(R, G, Q_TARGET[1:], 0.65) - Q_A, "q_lambda_0.65")


def off_policy():
    """rlax gets pi and mu of s_1..s_T; ours start at s_0, whose entries no target uses."""
    pi = torch.cat([torch.full_like(PI[:1], torch.nan), PI])  # [T+1, 1, A]
    mu = ops.taken(MU, A[1:])  # of a_1..a_T; the last one is not used either
    mu = torch.cat([torch.full_like(mu[:1], torch.nan), mu[:-1]])
    return ops.OffPolicy(Q_TARGET, pi, A[:-1], mu)


def test_retrace():
    check(ops.retrace(off_policy(), R, G, lambda_=0.95) - Q_A, "retrace_0.95")
    got = ops.transformed_retrace(off_policy(), R, G, lambda_=0.95) - Q_A
    check(got, "transformed_retrace_0.95", LOOSE)


def test_transformed_n_step_q():
    got = ops.transformed_n_step_q(R, G, Q_TARGET[1:], Q[1:].argmax(-1), 3) - Q_A
    check(got, "transformed_n_step_q_3", LOOSE)


def test_rescaling():
    x, h, inverse = (torch.tensor(GOLDEN["h"][k]) for k in ("x", "h", "hinv"))
    torch.testing.assert_close(ops.signed_hyperbolic(x), h)
    # At 0.1 the file has 0.20941; 50-digit arithmetic says 0.20954, and so do we.
    torch.testing.assert_close(ops.signed_parabolic(x), inverse, rtol=1e-3, atol=0)
    assert ops.signed_parabolic(torch.tensor(0.1)).item() == pytest.approx(0.209539061, rel=1e-6)


@pytest.mark.accept(4)
def test_categorical_projection():
    data = {k: torch.tensor(v) for k, v in GOLDEN["c51_project"].items()}
    reward, discount = data["r"][None], data["disc"][None]
    p, z = data["p"][None], data["z"]

    def matches(r, g, name):
        got = ops.categorical_project(z, r, g, p)
        torch.testing.assert_close(got[0], data[name], **TIGHT)

    matches(reward, discount, "out")
    matches(reward, torch.zeros(1), "out_terminal")
    matches(torch.tensor([9.9]), discount, "out_clip")


@pytest.mark.accept(6)
def test_quantile_huber():
    src, tau, target = (
        torch.tensor(GOLDEN["quantile_huber"][k])[None] for k in ("src", "tau", "tgt")
    )
    for kappa, name in ((1.0, "k1"), (0.0, "k0")):
        expected = torch.tensor([GOLDEN["quantile_huber"][name]])
        torch.testing.assert_close(ops.quantile_huber(src, tau, target, kappa), expected)


def test_policy():
    advantage = torch.tensor(GOLDEN["gae_0.95"]).unsqueeze(1)
    loss = ops.clipped_surrogate(RHO, advantage, 0.2).mean()
    torch.testing.assert_close(loss, torch.tensor(GOLDEN["ppo_clip"]))
    check(ops.kl(PI.log(), MU.log()), "kl_pi_mu")
