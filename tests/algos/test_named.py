"""Tests that the algorithm notes name: rows through real stores, losses against plain loops."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from torch import nn

from ludus import registry
from ludus.algos.dqn import DQN, Config, Munchausen
from ludus.algos.ppo import PPO
from ludus.collect.collector import Collector
from ludus.contract import NStep, Plan, Prioritized, Sequence, Uniform, Values
from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs
from ludus.learn.learner import Learner
from ludus.nets import heads
from ludus.nets.heads import Categorical, Implicit, Quantile, Scalar
from ludus.nets.normalize import Normalizer
from ludus.replay.replay_store import ReplayStore
from ludus.replay.samplers.host_tree import HostTree
from ludus.replay.store import Store, build_store
from ludus.types import ArraySpec, Chunk, Ctx, Discrete, EnvSpec, Rows, Transition
from tests.contract.tiny import tiny

SPEC = EnvSpec("toy", ArraySpec((3,)), Discrete(4))
GAMMA = 0.9


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def build(cfg: Config) -> tuple[DQN, nn.ModuleDict]:
    """Online and target nets with different weights, as in the middle of training."""
    algorithm = DQN(cfg)
    torch.manual_seed(0)
    net = algorithm.build(SPEC)
    for p in net["target"].parameters():
        p.add_(0.5 * torch.randn(p.shape))
    return algorithm, net


def batch(size: int = 16) -> Transition:
    g = rng(1)
    discount = torch.full((size,), GAMMA)
    discount[::4] = 0.0
    return Transition(
        torch.randn(size, 3, generator=g),
        torch.randint(4, (size,), generator=g),
        torch.randn(size, generator=g),
        discount,
        torch.randn(size, 3, generator=g),
    )


def random_rows(steps: int, over: int) -> Rows:
    """One column of random rows that terminates at row `over`; the row after it is the dummy."""
    g = rng(2)
    last = torch.zeros(steps, 1, dtype=torch.bool)
    first = torch.zeros(steps + 1, 1, dtype=torch.bool)
    mask = torch.ones(steps, 1, dtype=torch.bool)
    last[over] = first[0] = first[over + 2] = True
    mask[over + 1] = False
    reward = torch.randn(steps, 1, generator=g)
    return Rows(
        torch.randn(steps + 1, 1, 3, generator=g),
        torch.randint(4, (steps, 1), generator=g),
        reward,
        reward,
        1.0 - last.float(),
        last,
        first,
        mask,
    )


def fixed_taus(monkeypatch) -> dict[int, torch.Tensor]:
    """Every pass of an implicit head that asks for k taus gets the same ones: k -> [B,k]."""
    table: dict[int, torch.Tensor] = {}
    real = torch.rand

    def same(size: int, count: int, **_) -> torch.Tensor:
        if count not in table:
            table[count] = real(size, count, generator=rng(count))
        return table[count]

    monkeypatch.setattr(torch, "rand", same)
    return table


def store_for(algorithm: DQN, rows: Rows) -> Store:
    plan = algorithm.plan.for_envs(1)
    store = build_store(plan, SPEC, 1, seed=0, horizon=1000)
    store.add(Chunk(rows))
    return store


def window(rows: Rows, t: int, n: int) -> tuple[float, float, int]:
    """(n-step return, discount, rows read) from row t on, one reward after the other."""
    total, factor, k = 0.0, 1.0, 0
    while k < n:
        total += factor * rows.reward[t + k, 0].item()
        factor *= GAMMA * rows.discount[t + k, 0].item()
        k += 1
        if rows.last[t + k - 1, 0]:
            break
    return total, factor, k


@pytest.mark.parametrize("terminates", [True, False])
@pytest.mark.parametrize("n", [1, 3])
def test_p02_no_pair_goes_back_in_time_and_no_dummy_is_drawn(n, terminates) -> None:
    """Counter shows t and pays t + 1: every drawn item says which rows it was made of.

    A dummy row would show the final t and then 0.
    """
    length, slots = 5, 3
    algorithm = registry.make(tiny("dqn", "ludus/Counter-v0").algo)
    env = EnvConfig(
        id="ludus/Counter-v0", num=slots, args={"length": length, "terminates": terminates}
    )
    envs = make_envs(env, seed=3)
    collector, learner = Collector(algorithm, envs, seed=3), Learner(algorithm, envs.spec, seed=3)
    plan = Plan(NStep(n, GAMMA), Uniform(), 64, chunk=7, capacity=120)
    store = build_store(plan, envs.spec, slots, seed=3, horizon=1000)
    values = Values(algorithm.plan, 1000).at(500)
    collector.barrier(0)
    dummies, pairs = 0, set()
    for _ in range(40):  # more than twice around the ring
        chunk = collector.collect(learner.net, 7, values).chunk
        dummies += int((~chunk.rows.mask).sum())
        store.add(chunk)
        for _ in range(5):
            b = store.sample().batch
            (t, tag), (after, tag_after) = b.obs.unbind(1), b.next_obs.unbind(1)
            assert (after > t).all() and torch.equal(tag, tag_after)
            assert (t < length).all(), "the final observation opens a dummy row"
            pairs |= set(zip(t.tolist(), after.tolist(), strict=True))
            for i, (a, z) in enumerate(zip(t.tolist(), after.tolist(), strict=True)):
                k = int(z - a)
                assert k == min(n, length - int(a))
                paid = sum(GAMMA**j * (a + 1 + j) for j in range(k))
                assert b.reward[i].item() == pytest.approx(paid, rel=1e-5)
                over = terminates and z == length
                assert b.discount[i].item() == pytest.approx(0.0 if over else GAMMA**k)
    collector.close()
    assert dummies > 100 and len(pairs) == length, "every row of the episode is drawn"


@pytest.mark.parametrize("burn_in", [0, 2])
def test_p06_previous_action_and_reward_are_those_of_the_row_before(burn_in) -> None:
    """reward_t = 1 + action_{t-1}, 0 where an episode opens; obs_t = its row's number."""
    columns, steps, total = 2, 6, 600
    g = random.Random(4)
    spec = EnvSpec("line", ArraySpec((1,)), Discrete(9))
    last = torch.zeros(total, columns, dtype=torch.bool)
    first = torch.zeros(total + 1, columns, dtype=torch.bool)
    for c in range(columns):
        at = 0
        while at < total:
            first[at, c] = True
            end = at + g.randrange(1, 16)
            if end >= total:
                break
            last[end, c] = True
            at = end + 2  # the dummy between them
    mask = torch.ones(total, columns, dtype=torch.bool)
    mask[1:] = ~last[:-1]
    action = torch.randint(9, (total, columns), generator=rng(5))
    reward = torch.zeros(total, columns)
    reward[1:] = torch.where(first[1:-1], 0.0, 1.0 + action[:-1])
    obs = (torch.arange(total + 1)[:, None] * 10 + torch.arange(columns)).float()[..., None]
    discount = 1.0 - last.float()
    view = Sequence(length=4, period=2, burn_in=burn_in)
    plan = Plan(view, Uniform(), 32, chunk=steps, capacity=200)
    store = build_store(plan, spec, columns, seed=0, horizon=1000)
    opened = middle = 0
    for number, lo in enumerate(range(0, total, steps)):
        hi = lo + steps
        paid = reward[lo:hi]
        rows = Rows(obs[lo : hi + 1], action[lo:hi], paid, paid, discount[lo:hi], last[lo:hi],
                    first[lo : hi + 1], mask[lo:hi])  # fmt: skip
        store.add(Chunk(rows, sequence=number))
        if lo < 30:
            continue
        b = store.sample().batch
        assert b.prev_action.shape == b.prev_reward.shape == (burn_in + 5, 32)
        for i in range(32):
            for k in range(burn_in + 4):
                if not b.mask[k, i]:
                    continue
                t, c = divmod(int(b.obs[k, i, 0]), 10)
                before = int(b.prev_action[k, i]), float(b.prev_reward[k, i])
                if b.first[k, i]:
                    assert before == (0, 0.0) and first[t, c]
                    opened += 1
                else:
                    assert before == (int(action[t - 1, c]), float(reward[t - 1, c]))
                    assert before[0] == float(b.reward[k, i]) - 1, "the reward names it too"
                    middle += 1
                assert int(b.prev_action[k + 1, i]) == int(b.action[k, i])
                assert float(b.prev_reward[k + 1, i]) == float(b.reward[k, i])
    assert opened > 100 and middle > 1000


@pytest.mark.parametrize("over", [2, 3])
def test_rainbow_projects_a_terminal_inside_the_n_step_window(over, monkeypatch) -> None:
    """Mass by hand: sum of gamma^k r_k shared between two atoms, nothing of the next state."""
    n, atoms, low, high = 3, 21, -4.0, 4.0
    head = Categorical(atoms=atoms, v_min=low, v_max=high, dueling=True, noisy=0.5)
    replay = Prioritized(alpha=0.5)
    algorithm, net = build(Config(head=head, double=True, n_step=n, gamma=GAMMA, replay=replay,
                                  batch=32, capacity=100, warmup=1))  # fmt: skip
    rows = random_rows(12, over)
    sample = store_for(algorithm, rows).sample()
    seen: dict[str, torch.Tensor] = {}
    entropy, td = heads.categorical_cross_entropy, net["online"].head.td

    def spy_entropy(logits, target):
        seen["target"] = target
        return entropy(logits, target)

    def spy_td(out, action, reward, discount, next_dist):
        seen["next"] = next_dist
        return td(out, action, reward, discount, next_dist)

    monkeypatch.setattr(heads, "categorical_cross_entropy", spy_entropy)
    monkeypatch.setattr(net["online"].head, "td", spy_td)
    algorithm.loss(net, sample.batch, Ctx(rng(), SPEC))
    step = (high - low) / (atoms - 1)
    kinds = set()
    for i, t in enumerate(sample.ids.tolist()):
        total, factor, k = window(rows, t, n)
        want = [0.0] * atoms
        if t <= over and t + k - 1 == over:  # it terminates k rows on
            assert factor == 0.0
            assert sample.batch.discount[i] == 0
            place = (min(max(total, low), high) - low) / step
            below = min(int(place), atoms - 2)
            want[below], want[below + 1] = 1 - (place - below), place - below
            kinds.add(k)
        else:
            assert factor == pytest.approx(GAMMA**n)
            for j in range(atoms):
                place = (min(max(total + factor * (low + j * step), low), high) - low) / step
                below = min(int(place), atoms - 2)
                p = seen["next"][i, j].item()
                want[below] += p * (1 - (place - below))
                want[below + 1] += p * (place - below)
            kinds.add(0)
        assert sum(want) == pytest.approx(1.0, abs=1e-5)
        assert seen["target"][i].tolist() == pytest.approx(want, abs=2e-5)
    assert kinds == {0, 1, 2, 3}


@pytest.mark.parametrize("head", [Scalar(), Quantile(quantiles=5)], ids=lambda h: h.kind)
def test_munchausen_pays_its_bonus_once_for_n_steps(head, monkeypatch) -> None:
    """R = sum gamma^k r_k + alpha clip(tau ln pi(a_t|s_t)); later actions earn no bonus."""
    alpha, tau, low, n = 0.9, 0.3, -1.0, 3
    m = Munchausen(alpha=alpha, tau=tau, clip=low)
    algorithm, net = build(Config(head=head, munchausen=m, n_step=n, gamma=GAMMA, batch=64,
                                  capacity=100, warmup=1))  # fmt: skip
    rows = random_rows(30, 11)
    sample = store_for(algorithm, rows).sample()
    paid: list[torch.Tensor] = []
    td = net["online"].head.td

    def spy(out, action, reward, discount, next_dist):
        paid.append(reward)
        return td(out, action, reward, discount, next_dist)

    monkeypatch.setattr(net["online"].head, "td", spy)
    algorithm.loss(net, sample.batch, Ctx(rng(), SPEC))
    clipped = free = 0
    for i, t in enumerate(sample.ids.tolist()):
        total, _, _ = window(rows, t, n)
        with torch.no_grad():
            q = net["target"](rows.obs[t]).q[0].double().tolist()
        z = math.log(sum(math.exp((v - max(q)) / tau) for v in q))
        log_pi = (q[rows.action[t, 0]] - max(q)) / tau - z
        bonus = max(low, min(0.0, tau * log_pi))
        clipped, free = clipped + (bonus == low), free + (bonus > low)
        assert paid[0][i].item() == pytest.approx(total + alpha * bonus, abs=1e-4)
    assert clipped and free, "else the bound was not tested"


@pytest.mark.parametrize(
    "head",
    [Scalar(), Implicit(taus=5, target_taus=6, act_taus=7, cosines=8)],
    ids=["dqn", "iqn"],
)
def test_munchausen_without_alpha_and_temperature_is_plain(head, monkeypatch) -> None:
    """Loss, priority and gradient; the taus are fixed, the bonus would draw some of its own."""
    fixed_taus(monkeypatch)
    soft, net = build(Config(head=head, munchausen=Munchausen(alpha=0.0, tau=1e-7)))
    got = []
    for algorithm in (soft, DQN(Config(head=head))):
        loss = algorithm.loss(net, batch(), Ctx(rng(), SPEC))
        grads = torch.autograd.grad(loss.value.sum(), net["online"].parameters())
        got.append((loss.value, loss.priority, *grads))
    for a, b in zip(*got, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
    warm = DQN(Config(head=head, munchausen=Munchausen(alpha=0.0, tau=0.3)))
    other = warm.loss(net, batch(), Ctx(rng(), SPEC)).value
    assert not torch.allclose(other, got[1][0], atol=1e-3), "a soft target must differ"


@pytest.mark.parametrize(("width", "top", "count"), [(32, 1 << 15, 100_000), (4, 4, 20_000)])
def test_per_tree_equals_a_dict_after_many_random_operations(width, top, count) -> None:
    """1e5 items added, drawn or given priorities, also stale ones, round and round the ring.

    The second tree is narrow, so that the same few items need several levels.
    """
    alpha, epsilon, columns, size = 0.6, 1e-3, 3, 16
    sampler = Prioritized(alpha=alpha, epsilon=epsilon)
    spec = EnvSpec("line", ArraySpec((1,)), Discrete(2))
    plan = Plan(NStep(1, GAMMA), sampler, size, chunk=4, capacity=150)
    store = build_store(plan, spec, columns, seed=1, horizon=1000)
    assert isinstance(store, ReplayStore)
    store.sampler.tree = tree = HostTree(store.ring.layout.slots, width=width, top=top)
    length = store.ring.length
    g = random.Random(7)
    kinds = []  # chunks of 1 to 4 rows, some with an end and its dummy
    for steps in (1, 2, 3, 4):
        for over in (None, *range(steps - 1)):
            last = torch.zeros(steps, columns, dtype=torch.bool)
            mask = torch.ones(steps, columns, dtype=torch.bool)
            if over is not None:
                last[over, 1] = True  # one column only
                mask[over + 1, 1] = False
            zero, no = torch.zeros(steps, columns), torch.zeros(steps + 1, columns) > 0
            rows = Rows(torch.zeros(steps + 1, columns, 1), zero.long(), zero, zero,
                        1.0 - last.float(), last, no, mask)  # fmt: skip
            kinds.append((rows, mask.tolist()))
    brute: dict[int, float] = {}  # id -> p^alpha
    drawn: list[torch.Tensor] = []
    head = sequence = stale = done = calls = 0
    largest = 1.0
    while done < count:
        calls += 1
        what = g.random()
        if what < 0.3 or not brute:
            rows, mask = g.choice(kinds)
            store.add(Chunk(rows, sequence=sequence))
            sequence += 1
            done += len(mask) * columns
            for row in mask:
                for c in range(columns):
                    if row[c]:
                        brute[head * columns + c] = largest**alpha
                head += 1
                # A row leaves when its slot is needed for the observation after the newest.
                for c in range(columns):
                    brute.pop((head - length) * columns + c, None)
        elif what < 0.7 or not drawn:
            ids = store.sample().ids
            assert all(i in brute for i in ids.tolist())
            drawn.append(ids)
            done += size
            del drawn[:-40]
        else:
            ids = drawn.pop(g.randrange(len(drawn)))
            # Of the id, so that an item drawn twice gets one priority.
            priority = ((ids * 7919 + calls) % 101).double() / 20
            store.feedback(ids, priority)
            done += size
            for i, p in zip(ids.tolist(), priority.tolist(), strict=True):
                if i in brute:
                    brute[i] = (p + epsilon) ** alpha
                    largest = max(largest, p + epsilon)
                else:
                    stale += 1
        if calls % 20 == 0 or done >= count:
            want = np.zeros(store.ring.layout.slots)
            for i, value in brute.items():
                want[i % len(want)] = value
            leaves = tree.leaves[: len(want)].numpy()
            np.testing.assert_allclose(leaves, want, rtol=1e-12, atol=0)
            assert float(tree.total) == pytest.approx(math.fsum(brute.values()), rel=1e-12)
            assert store.size == len(brute)
    assert head > 10 * length and stale > 100


@pytest.mark.parametrize("env", ["CartPole-v1", "ludus/IdentityBox-v0"])
def test_ppo_first_minibatch_of_the_learner_has_ratio_one(env, monkeypatch) -> None:
    """With moving observation statistics: acting and learning must scale by the same ones."""
    algorithm = registry.make(tiny("ppo", env, "algo.lr=1e-2").algo)
    assert isinstance(algorithm, PPO)
    plan = algorithm.plan.for_envs(4)
    envs = make_envs(EnvConfig(id=env, num=4), seed=0)
    normalizer = Normalizer(envs.spec, 4, obs=True, reward=True)
    learner = Learner(algorithm, envs.spec, seed=0, normalizer=normalizer)
    collector = Collector(algorithm, envs, seed=0)
    store = build_store(plan, envs.spec, 4, seed=0, horizon=1000)
    values = Values(plan, 1000).at(0)
    ratios: list[torch.Tensor] = []
    real = algorithm.loss

    def spy(net, b, ctx):
        with torch.no_grad():
            now = net["online"].dist(b.obs, b.action_mask).log_prob(b.action)
            ratios.append((now - b.log_prob).exp()[b.mask])
        return real(net, b, ctx)

    monkeypatch.setattr(algorithm, "loss", spy)
    metrics: list[dict[str, float]] = []
    learner.on_update = lambda m: metrics.append({k: float(v) for k, v in m.items()})
    collector.barrier(0)
    for _ in range(4):
        chunk = collector.collect(learner.net, plan.chunk, values).chunk
        store.add(chunk)
        ratios.clear()
        metrics.clear()
        learner.learn(store.sample(), values)
        learner.observe(chunk.rows)
        assert len(ratios) == plan.epochs * plan.minibatches
        torch.testing.assert_close(ratios[0], torch.ones_like(ratios[0]), atol=1e-5, rtol=0)
        assert metrics[0]["clip_fraction"] == 0.0
        assert metrics[0]["approx_kl"] == pytest.approx(0.0, abs=1e-6)
        assert metrics[-1]["approx_kl"] > 1e-5, "the policy moved within the sample"
    collector.close()
    shift = learner.net["normalizer"].get_buffer("shift_0")
    assert shift.abs().max() > 1e-3, "else the normaliser did nothing"


@pytest.mark.parametrize("kappa", [1.0, 0.4])
@pytest.mark.parametrize("double", [False, True])
def test_iqn_loss_is_the_papers_in_plain_loops(kappa, double, monkeypatch) -> None:
    """Dabney et al. 2018b, eq. 2 and 3: a* by K taus, N' target samples, N learned quantiles."""
    taus = fixed_taus(monkeypatch)
    head = Implicit(taus=4, target_taus=3, act_taus=5, cosines=8, kappa=kappa)
    algorithm, net = build(Config(head=head, double=double))
    for name in ("online", "target"):
        output = net[name].head.streams.output  # no action is the best one everywhere
        output.bias.data.zero_()
        output.weight.data.sub_(output.weight.data.mean(1, keepdim=True))
    b = batch(8)
    loss = algorithm.loss(net, b, Ctx(rng(), SPEC))
    assert sorted(taus) == [3, 4, 5]

    def at(name: str, obs: torch.Tensor, count: int) -> list:
        """Values [B][A][count] at the given taus."""
        with torch.no_grad():
            q = net[name]
            return q.head.at(q.torso(obs), taus[count]).dist.double().tolist()

    learned, target = at("online", b.obs, 4), at("target", b.next_obs, 3)
    choice = at("online" if double else "target", b.next_obs, 5)
    best = set()
    for item in range(8):
        means = [sum(row) / 5 for row in choice[item]]
        a_star = means.index(max(means))
        best.add(a_star)
        total, size = 0.0, 0.0
        for i in range(4):
            for j in range(3):
                goal = b.reward[item].item() + b.discount[item].item() * target[item][a_star][j]
                u = goal - learned[item][int(b.action[item])][i]
                huber = 0.5 * u * u if abs(u) <= kappa else kappa * (abs(u) - 0.5 * kappa)
                slope = abs(taus[4][item, i].item() - (1.0 if u < 0 else 0.0))
                total += slope * huber / kappa / 3
                size += abs(u) / 12
        assert loss.value[item].item() == pytest.approx(total, rel=1e-4)
        assert loss.priority[item].item() == pytest.approx(size, rel=1e-4)
    assert len(set(b.action.tolist())) > 1 and len(best) > 1, "several actions, else no test"
