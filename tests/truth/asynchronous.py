"""Targets of Mnih et al. 2016 for one uninterrupted piece of a fragment: n rows, n+1 states.

`g` holds gamma, or 0 where the episode terminated; `q` the target net's values of each state.
"""


def largest(values):
    best = values[0]
    for x in values:
        if x > best:
            best = x
    return best


def one_step_q(r, g, q):
    """Algorithm 1: y = r + γ max_a' Q(s', a'; θ⁻)."""
    return [r[t] + g[t] * largest(q[t + 1]) for t in range(len(r))]


def one_step_sarsa(r, g, q, a):
    """Section 4: y = r + γ Q(s', a'; θ⁻), a' taken in s'; `a` holds an action for every state."""
    return [r[t] + g[t] * q[t + 1][a[t + 1]] for t in range(len(r))]


def n_step_q(r, g, q):
    """Algorithm S2: R <- max_a Q(s_n, a; θ⁻), then backwards R <- r_i + γ R."""
    total = largest(q[len(r)])
    result = [0.0] * len(r)
    for i in range(len(r) - 1, -1, -1):
        total = r[i] + g[i] * total
        result[i] = total
    return result


def returns(r, g, v):
    """Algorithm S3: the same with V in place of max Q."""
    return n_step_q(r, g, [[x] for x in v])
