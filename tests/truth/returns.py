"""Returns of one uninterrupted piece: r and g of length n, v of length n+1."""


def n_step(r, g, v, n):
    """Sutton & Barto 2018, eq. 7.1, the horizon being min(t + n, end)."""
    result = []
    for t in range(len(r)):
        end = min(t + n, len(r))
        total, product = 0.0, 1.0
        for k in range(t, end):
            total += product * r[k]
            product *= g[k]
        result.append(total + product * v[end])
    return result


def lambda_return(r, g, v, lam):
    """Sutton & Barto 2018, eq. 12.3: the λ-weighted average of all n-step returns."""
    result = []
    for t in range(len(r)):
        longest = len(r) - t
        total = 0.0
        for n in range(1, longest):
            total += (1 - lam) * lam ** (n - 1) * n_step(r, g, v, n)[t]
        total += lam ** (longest - 1) * n_step(r, g, v, longest)[t]
        result.append(total)
    return result


def gae(r, g, v, lam):
    """Schulman et al. 2016, eq. 16: Σ_l (γλ)^l δ_{t+l}."""
    result = []
    for t in range(len(r)):
        total, weight = 0.0, 1.0
        for k in range(t, len(r)):
            delta = r[k] + g[k] * v[k + 1] - v[k]
            total += weight * delta
            weight *= g[k] * lam
        result.append(total)
    return result


def rewards_to_go(r, g, after):
    """Williams 1992: G_t, the discounted rewards to the end; `after`: the worth of what follows."""
    result = []
    for t in range(len(r)):
        total, product = 0.0, 1.0
        for k in range(t, len(r)):
            total += product * r[k]
            product *= g[k]
        result.append(total + product * after)
    return result


def peng_q_lambda(rewards, discounts, last, best, gamma, lam, t=0):
    """Target of row t of one environment; best[t] is max_a Q(s_t, a), with one entry more."""
    after = best[t + 1]
    if not last[t] and t + 1 < len(rewards):
        later = peng_q_lambda(rewards, discounts, last, best, gamma, lam, t + 1)
        after = lam * later + (1 - lam) * after
    return rewards[t] + gamma * discounts[t] * after
