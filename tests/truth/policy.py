"""Categorical policies, PPO, Munchausen and the value rescaling, of a single item."""

import math


def softmax(logits):
    norm = sum(math.exp(x) for x in logits)
    return [math.exp(x) / norm for x in logits]


def entropy(logits):
    return -sum(p * math.log(p) for p in softmax(logits) if p > 0)


def kl(logits_p, logits_q):
    pairs = zip(softmax(logits_p), softmax(logits_q), strict=True)
    return sum(p * math.log(p / q) for p, q in pairs if p > 0)


def clipped_surrogate(ratio, advantage, clip):
    """Schulman et al. 2017, eq. 7, as a loss."""
    clipped = min(max(ratio, 1 - clip), 1 + clip)
    return -min(ratio * advantage, clipped * advantage)


def munchausen(q, action, tau, low):
    """Vieillard et al. 2020, section 4: [τ ln π(a|s)] clipped to [l0, 0]."""
    log_pi = math.log(softmax([x / tau for x in q])[action])
    return min(max(tau * log_pi, low), 0.0)


def soft_value(q, tau):
    """Vieillard et al. 2020, eq. 1: Σ_a π(a) (q(a) - τ ln π(a))."""
    pi = softmax([x / tau for x in q])
    return sum(p * (x - tau * math.log(p)) for p, x in zip(pi, q, strict=True) if p > 0)


def h(x, eps):
    """Pohlen et al. 2018, proposition A.2."""
    return math.copysign(1, x) * (math.sqrt(abs(x) + 1) - 1) + eps * x


def h_inverse(x, eps):
    root = math.sqrt(1 + 4 * eps * (abs(x) + 1 + eps))
    return math.copysign(1, x) * (((root - 1) / (2 * eps)) ** 2 - 1)


def policy_gradient(log_p, advantage, error, entropy, value_cost, entropy_cost):
    """One row of an actor-critic's loss: -ln π(a) A + c_v (R - V)² - c_e H."""
    return -log_p * advantage + value_cost * error**2 - entropy_cost * entropy


def standardized(x):
    """(x - mean) / deviation, the deviation of a sample (n - 1)."""
    mean = sum(x) / len(x)
    deviation = math.sqrt(sum((v - mean) ** 2 for v in x) / (len(x) - 1))
    return [(v - mean) / deviation for v in x]
