"""Off-policy corrections of one uninterrupted piece, in their sum form, not the recursion."""


def vtrace_values(r, g, rho, v, lam, rho_clip, c_clip):
    """Espeholt et al. 2018, eq. 1: V(x_s) + Σ_t γ^{t-s} (Π_{i<t} c_i) δ_t V."""
    result = []
    for s in range(len(r)):
        total = v[s]
        for t in range(s, len(r)):
            weight = 1.0
            for i in range(s, t):
                weight *= g[i] * lam * min(c_clip, rho[i])
            delta = min(rho_clip, rho[t]) * (r[t] + g[t] * v[t + 1] - v[t])
            total += weight * delta
        result.append(total)
    return result


def vtrace_advantages(r, g, rho, v, lam, rho_clip, c_clip, pg_clip):
    """Espeholt et al. 2018, section 4.2: ρ_s (r_s + γ v_{s+1} - V(x_s)), v at the end being V.

    With λ < 1 the next value is the mixture λ v_{s+1} + (1-λ) V(x_{s+1}).
    """
    vs = [*vtrace_values(r, g, rho, v, lam, rho_clip, c_clip), v[-1]]
    result = []
    for s in range(len(r)):
        follow = lam * vs[s + 1] + (1 - lam) * v[s + 1]
        result.append(min(pg_clip, rho[s]) * (r[s] + g[s] * follow - v[s]))
    return result


def retrace(r, g, action, mu, q, pi, lam):
    """Munos et al. 2016, eq. 3: Q + Σ_s γ^{s-t} (Π c_i) (r_s + γ E_π Q(x_{s+1}) - Q(x_s, a_s))."""
    result = []
    for t in range(len(r)):
        total = q[t][action[t]]
        for s in range(t, len(r)):
            weight = 1.0
            for i in range(t + 1, s + 1):
                weight *= lam * min(1.0, pi[i][action[i]] / mu[i])
            for i in range(t, s):
                weight *= g[i]
            expected = sum(p * x for p, x in zip(pi[s + 1], q[s + 1], strict=True))
            total += weight * (r[s] + g[s] * expected - q[s][action[s]])
        result.append(total)
    return result
