"""Pure tensor functions, one per equation. No config, no nets, no reduction over the batch.

Time-major [T, B] where there is time. Targets and advantages are constants (computed without
gradient); losses, log-probabilities, entropies and the rescaling are differentiable.
"""

from ludus.ops.distributional import categorical_cross_entropy, categorical_project, quantile_huber
from ludus.ops.frozen import frozen
from ludus.ops.policy import (
    clipped_surrogate,
    entropy,
    kl,
    log_policy,
    log_prob,
    munchausen_bonus,
    soft_value,
)
from ludus.ops.rescale import SIGNED_HYPERBOLIC, Rescale, signed_hyperbolic, signed_parabolic
from ludus.ops.retrace import (
    OffPolicy,
    q_lambda,
    retrace,
    transformed_n_step_q,
    transformed_retrace,
)
from ludus.ops.returns import backward_sum, gae, lambda_returns, n_step_returns, trace_ends
from ludus.ops.td import (
    double_q_target,
    expected_sarsa_target,
    expected_value,
    huber,
    q_target,
    sarsa_target,
    taken,
)
from ludus.ops.vtrace import VTrace, vtrace

__all__ = [
    "SIGNED_HYPERBOLIC",
    "OffPolicy",
    "Rescale",
    "VTrace",
    "backward_sum",
    "categorical_cross_entropy",
    "categorical_project",
    "clipped_surrogate",
    "double_q_target",
    "entropy",
    "expected_sarsa_target",
    "expected_value",
    "frozen",
    "gae",
    "huber",
    "kl",
    "lambda_returns",
    "log_policy",
    "log_prob",
    "munchausen_bonus",
    "n_step_returns",
    "q_lambda",
    "q_target",
    "quantile_huber",
    "retrace",
    "sarsa_target",
    "signed_hyperbolic",
    "signed_parabolic",
    "soft_value",
    "taken",
    "trace_ends",
    "transformed_n_step_q",
    "transformed_retrace",
    "vtrace",
]
