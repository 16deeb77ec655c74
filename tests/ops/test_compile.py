"""Every op traces into one graph: no data-dependent branch, no .item()."""

import torch

from ludus import ops
from tests.ops.streams import GO, TRUNCATE, build


def everything(s):
    """One call of each op that has a loop, a branch or a check."""
    data = ops.OffPolicy(s.q, s.pi, s.action, s.mu)
    reward, discount, q, last = s.reward[0], s.discount[0], s.q[1], s.last
    probs, atoms = s.pi[1], torch.linspace(-1, 1, 3, dtype=s.q.dtype)
    return (
        ops.n_step_returns(s.reward, s.discount, s.value[1:], 3, last),
        ops.lambda_returns(s.reward, s.discount, s.value[1:], 0.9, last),
        ops.gae(s.reward, s.discount, s.value, 0.9, ops.trace_ends(last, s.mask)),
        *ops.vtrace(s.value, s.reward, s.discount, s.rho, last),
        ops.transformed_retrace(data, s.reward, s.discount, last, lambda_=0.95),
        ops.q_lambda(s.reward, s.discount, s.q[1:], 0.65, last),
        ops.transformed_n_step_q(s.reward, s.discount, s.q[1:], s.action, 3, last),
        ops.double_q_target(reward, discount, q, probs),
        ops.expected_sarsa_target(reward, discount, q, probs),
        ops.categorical_project(atoms, reward, discount, probs),
        ops.categorical_cross_entropy(q, probs),
        ops.quantile_huber(q, probs, s.q[2]),
        ops.clipped_surrogate(s.rho, s.reward, 0.2),
        ops.entropy(q) + ops.kl(q, probs) + ops.soft_value(q, 0.03),
        ops.munchausen_bonus(q, s.action[0], 0.03, -1.0),
    )


def test_the_ops_make_one_graph():
    s = build([[GO, GO, TRUNCATE, GO, GO, GO]] * 2, starts_with_dummy=False, seed=0, poison=1.0)
    graphs = []

    def count(module, _inputs):
        graphs.append(module)
        return module.forward

    compiled = torch.compile(everything, fullgraph=True, backend=count, dynamic=False)
    for got, expected in zip(compiled(s), everything(s), strict=True):
        torch.testing.assert_close(got, expected)
    assert len(graphs) == 1
