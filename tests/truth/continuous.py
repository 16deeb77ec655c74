"""SAC and TD3, of a single item; actions in units of [-1, 1]."""

import math


def squashed(mean, log_std, noise):
    """Haarnoja et al. 2018, appendix C: the action tanh(u) and log pi, by the density of u."""
    action, log_pi = [], 0.0
    for mu, log_sigma, e in zip(mean, log_std, noise, strict=True):
        sigma = math.exp(log_sigma)
        a = math.tanh(mu + sigma * e)
        density = math.exp(-e * e / 2) / (sigma * math.sqrt(2 * math.pi))
        log_pi += math.log(density) - math.log(1 - a * a)
        action.append(a)
    return action, log_pi


def soft_target(r, g, q1, q2, alpha, log_pi):
    """Haarnoja et al. 2018b, eq. 2 and 3, with the smaller of two critics."""
    return r + g * (min(q1, q2) - alpha * log_pi)


def soft_policy(q1, q2, alpha, log_pi):
    """Haarnoja et al. 2018b, eq. 7."""
    return alpha * log_pi - min(q1, q2)


def temperature(log_alpha, log_pi, wanted):
    """Haarnoja et al. 2018b, eq. 18, in the logarithm."""
    return -log_alpha * (log_pi + wanted)


def smoothed(action, noise, bound):
    """Fujimoto et al. 2018, eq. 14: clipped noise on the target's action, kept in the box."""
    clipped = [min(max(e, -bound), bound) for e in noise]
    return [min(max(a + e, -1.0), 1.0) for a, e in zip(action, clipped, strict=True)]


def clipped_double_q(r, g, q1, q2):
    """Fujimoto et al. 2018, eq. 10."""
    return r + g * min(q1, q2)
