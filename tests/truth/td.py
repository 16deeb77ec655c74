"""One-step targets and the Huber loss of a single item."""


def q_learning(r, g, next_q):
    best = next_q[0]
    for x in next_q:
        if x > best:
            best = x
    return r + g * best


def double_q(r, g, next_q_target, next_q_online):
    """van Hasselt et al. 2016, eq. 4."""
    chosen = 0
    for a in range(len(next_q_online)):
        if next_q_online[a] > next_q_online[chosen]:
            chosen = a
    return r + g * next_q_target[chosen]


def sarsa(r, g, next_q, next_action):
    return r + g * next_q[next_action]


def expected_sarsa(r, g, next_q, policy):
    total = 0.0
    for a in range(len(next_q)):
        if policy[a] > 0:
            total += policy[a] * next_q[a]
    return r + g * total


def huber(x, delta):
    if abs(x) <= delta:
        return x * x / 2
    return delta * (abs(x) - delta / 2)
