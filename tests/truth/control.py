"""Losses of actor-critics with twin critics, for one item, in plain numbers.

Haarnoja et al. 2018 (1812.05905, eq. 5 to 7, 18 and appendix C), Christodoulou 2019 (1910.07207,
eq. 10 to 12), Fujimoto et al. 2018 (algorithm 1)."""

import math


def squashed_log_prob(mean, log_std, noise):
    """log pi of u = tanh(x), x = mean + std noise: the Gaussian's, less that of the slopes."""
    total = 0.0
    for m, s, e in zip(mean, log_std, noise, strict=True):
        x = m + math.exp(s) * e
        gaussian = -0.5 * e * e - s - 0.5 * math.log(2 * math.pi)
        total += gaussian - math.log(1 - math.tanh(x) ** 2)
    return total


def critic_loss(taken, target, half):
    """Of every critic's value of the action taken."""
    return (0.5 if half else 1.0) * sum((q - target) ** 2 for q in taken)


def sac_sampled(reward, discount, next_q, next_log_pi, taken, q, log_pi, alpha, wanted):
    """Continuous actions, one sample of each expectation."""
    target = reward + discount * (min(next_q) - alpha * next_log_pi)
    policy = alpha * log_pi - min(q)
    temperature = -math.log(alpha) * (log_pi + wanted)
    return critic_loss(taken, target, half=True) + policy + temperature


def sac_expected(reward, discount, next_q, next_pi, action, q, pi, alpha, wanted):
    """Discrete actions: q and next_q have a row for each critic and a column for each action."""
    value = 0.0
    for a, p in enumerate(next_pi):
        value += p * (min(row[a] for row in next_q) - alpha * math.log(p))
    target = reward + discount * value
    policy = temperature = 0.0
    for a, p in enumerate(pi):
        policy += p * (alpha * math.log(p) - min(row[a] for row in q))
        temperature -= p * math.log(alpha) * (math.log(p) + wanted)
    taken = [row[action] for row in q]
    return critic_loss(taken, target, half=True) + policy + temperature


def smoothed_action(action, noise, clip):
    """The target policy's action with clipped noise, within [-1, 1]."""
    return [
        max(-1.0, min(1.0, a + max(-clip, min(clip, e))))
        for a, e in zip(action, noise, strict=True)
    ]


def td3(reward, discount, next_q, taken, policy_q):
    """`policy_q`: the first critic's value of the policy's action."""
    target = reward + discount * min(next_q)
    return critic_loss(taken, target, half=False) - policy_q
