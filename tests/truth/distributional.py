"""Return distributions of a single item."""

import math

from tests.truth.td import huber


def project(z, r, g, p):
    """Bellemare et al. 2017, algorithm 1, with all mass to one atom when b is an integer."""
    low, high, step = z[0], z[-1], (z[-1] - z[0]) / (len(z) - 1)
    m = [0.0] * len(z)
    for j in range(len(z)):
        moved = min(max(r + g * z[j], low), high)
        b = min(max((moved - low) / step, 0.0), len(z) - 1.0)
        lower, upper = math.floor(b), math.ceil(b)
        if lower == upper:
            m[lower] += p[j]
        else:
            m[lower] += p[j] * (upper - b)
            m[upper] += p[j] * (b - lower)
    return m


def cross_entropy(logits, p):
    norm = sum(math.exp(x) for x in logits)
    return -sum(weight * (x - math.log(norm)) for weight, x in zip(p, logits, strict=True))


def quantile_huber(theta, tau, target, kappa):
    """Dabney et al. 2018 (QR-DQN), eq. 9, 10 and algorithm 1: Σ_i E_j [ρ_τi(T_j - θ_i)]."""
    total = 0.0
    for i in range(len(theta)):
        inner = 0.0
        for j in range(len(target)):
            u = target[j] - theta[i]
            side = 1.0 if u < 0 else 0.0
            size = huber(u, kappa) / kappa if kappa > 0 else abs(u)
            inner += abs(tau[i] - side) * size
        total += inner / len(target)
    return total
