"""Targets of the asynchronous value methods against plain loops; epsilons; target copies."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from ludus.algos.async_q import AsyncQ, Config
from ludus.learn.learner import Learner
from ludus.settings.resolve import Request, resolve
from ludus.types import ArraySpec, Ctx, Discrete, EnvSpec, Sample, Step, Traj
from tests.truth.asynchronous import n_step_q, one_step_q, one_step_sarsa
from tests.truth.episodes import pieces

SPEC = EnvSpec("toy", ArraySpec((3,)), Discrete(4))
ROWS, SLOTS, GAMMA = 7, 3, 0.9


def context(epsilon: float = 0.0, **more) -> Ctx:
    values = {"epsilon": torch.tensor(epsilon), "warming": torch.tensor(0.0)}
    values["lr"] = torch.tensor(1e-3)
    return Ctx(torch.Generator().manual_seed(0), SPEC, values, **more)


def make(rule: str, **settings):
    algorithm = AsyncQ(Config(rule=rule, gamma=GAMMA, **settings))
    torch.manual_seed(0)
    net = algorithm.build(SPEC)
    for p in net["target"].parameters():
        p.add_(0.3 * torch.randn(p.shape))
    return algorithm, net


def fragment(epsilon: float = 0.0) -> Traj:
    """Slot 0 runs on, slot 1 terminates after row 2, slot 2 is truncated after row 3."""
    g = torch.Generator().manual_seed(1)
    last = torch.zeros(ROWS, SLOTS, dtype=torch.bool)
    last[2, 1] = last[3, 2] = True
    mask = torch.ones(ROWS, SLOTS, dtype=torch.bool)
    mask[3, 1] = mask[4, 2] = False
    discount = torch.ones(ROWS, SLOTS)
    discount[2, 1] = 0.0
    first = torch.zeros(ROWS + 1, SLOTS, dtype=torch.bool)
    first[4, 1] = first[5, 2] = True
    reward = torch.randn(ROWS, SLOTS, generator=g)
    return Traj(
        torch.randn(ROWS + 1, SLOTS, 3, generator=g),
        torch.randint(4, (ROWS, SLOTS), generator=g),
        torch.where(mask, reward, torch.nan),  # whoever reads a dummy row shows it
        discount,
        last,
        first,
        mask,
        extras={"epsilon": torch.full((ROWS, SLOTS), epsilon)},
    )


def true_targets(rule: str, net, b: Traj) -> dict[tuple[int, int], float]:
    """(row, slot) -> target, by pieces of each column."""
    out = {}
    with torch.no_grad():
        q = torch.stack([net["target"](o).q for o in b.obs])
        greedy = torch.stack([net["online"](o).q.argmax(-1) for o in b.obs])
    for c in range(SLOTS):
        actions = [*b.action[:, c].tolist(), int(greedy[-1, c])]  # epsilon 0: what comes is greedy
        for start, stop in pieces(b.last[:, c].tolist(), b.mask[:, c].tolist()):
            r = b.reward[start:stop, c].tolist()
            g = (GAMMA * b.discount[start:stop, c]).tolist()
            values = q[start : stop + 1, c].tolist()
            if rule == "sarsa":
                y = one_step_sarsa(r, g, values, actions[start : stop + 1])
            else:
                y = (one_step_q if rule == "q" else n_step_q)(r, g, values)
            out |= {(start + i, c): value for i, value in enumerate(y)}
    return out


@pytest.mark.accept(150)
@pytest.mark.accept(17)
@pytest.mark.accept(18)
@pytest.mark.accept(19)
@pytest.mark.parametrize("rule", ["q", "sarsa", "nstep"])
def test_targets_and_the_summed_loss_equal_plain_loops(rule) -> None:
    algorithm, net = make(rule)
    b, ctx = fragment(), context()
    got = algorithm._target(net, b, GAMMA * b.discount)
    want = true_targets(rule, net, b)
    assert len(want) == ROWS * SLOTS - 2
    for (t, c), y in want.items():
        assert float(got[t, c]) == pytest.approx(y, abs=1e-5), (t, c)
    loss = algorithm.loss(net, b, ctx)
    for c in range(SLOTS):
        total = 0.0
        for (t, column), y in want.items():
            if column == c:
                with torch.no_grad():
                    q = float(net["online"](b.obs[t]).q[c, b.action[t, c]])
                total += 0.5 * (y - q) ** 2
        assert float(loss.value[c].detach()) == pytest.approx(total, rel=1e-4)


def test_the_last_row_of_a_fragment_takes_the_mean_over_the_policy() -> None:
    algorithm, net = make("sarsa")
    b = fragment(epsilon=0.4)
    got = algorithm._target(net, b, GAMMA * b.discount)[-1]
    with torch.no_grad():
        q, best = net["target"](b.obs[-1]).q, net["online"](b.obs[-1]).q.argmax(-1)
    for c in range(SLOTS):
        policy = [0.1 + 0.6 * (a == int(best[c])) for a in range(4)]
        mean = sum(p * float(q[c, a]) for a, p in enumerate(policy))
        assert float(got[c]) == pytest.approx(float(b.reward[-1, c]) + GAMMA * mean, abs=1e-5)


def test_no_gradient_reaches_the_target_net_or_the_targets() -> None:
    for rule in ("q", "sarsa", "nstep"):
        algorithm, net = make(rule)
        algorithm.loss(net, fragment(), context()).value.sum().backward()
        assert all(p.grad is None for p in net["target"].parameters())
        assert all(p.grad.isfinite().all() for p in net["online"].parameters())


def test_the_gradient_is_a_sum_over_rows_and_clipped_at_40() -> None:
    algorithm, _ = make("q", lr=1.0, optimizer={"kind": "sgd"})
    learner = Learner(algorithm, SPEC, seed=0)
    b = fragment()
    wide = b._replace(reward=1e4 * torch.nan_to_num(b.reward))
    before = [p.detach().clone() for p in learner.params]
    learner.learn(Sample(wide, torch.arange(SLOTS), torch.ones(SLOTS)), context().values | {
        "lr": torch.tensor(1.0)})  # fmt: skip
    moved = [p.detach() - old for p, old in zip(learner.params, before, strict=True)]
    norm = float(torch.linalg.vector_norm(torch.stack([m.norm() for m in moved])))
    assert norm == pytest.approx(40.0, rel=1e-3)


@pytest.mark.accept(101)
def test_every_actor_draws_its_final_epsilon_once_from_the_seed() -> None:
    algorithm = AsyncQ(Config())
    drawn = Counter()
    for actor in range(300):
        ctx = context(actor=actor, actors=300, seed=5)
        [value] = algorithm.sampled_hparams(1, ctx)["epsilon"]
        assert algorithm.sampled_hparams(1, ctx)["epsilon"] == [value], (
            "asked again, it is the same"
        )
        ctx.rng.manual_seed(actor)  # a barrier re-derives this one
        assert algorithm.begin(1, ctx).tolist() == [value]
        drawn[round(value, 2)] += 1
    assert set(drawn) == {0.1, 0.01, 0.5}
    for value, share in ((0.1, 0.4), (0.01, 0.3), (0.5, 0.3)):
        assert drawn[value] / 300 == pytest.approx(share, abs=0.09)
    others = [algorithm.sampled_hparams(1, context(actor=a, seed=6))["epsilon"] for a in range(20)]
    assert others != [
        algorithm.sampled_hparams(1, context(actor=a, seed=5))["epsilon"] for a in range(20)
    ]


@pytest.mark.accept(101)
def test_the_probabilities_of_a_final_epsilon_are_the_papers() -> None:
    """20,000 draws: three standard deviations of a share are about 0.01."""
    drawn = AsyncQ(Config()).sampled_hparams(20_000, context(seed=5, num_envs=20_000))["epsilon"]
    shares = {round(value, 2): n / 20_000 for value, n in Counter(drawn).items()}
    assert shares == pytest.approx({0.1: 0.4, 0.01: 0.3, 0.5: 0.3}, abs=0.012)


@pytest.mark.accept(101)
def test_an_actor_anneals_to_its_own_epsilon_over_the_shared_span() -> None:
    algorithm, net = make("q", epsilon="1->0.1@100")
    flags = torch.zeros(3, dtype=torch.bool)
    step = Step(torch.zeros(3, 3), flags, flags, *[torch.zeros(3)] * 3, flags, None)
    finals = torch.tensor([0.1, 0.01, 0.5])
    for now, want in ((1.0, [1, 1, 1]), (0.55, [0.55, 0.505, 0.75]), (0.1, [0.1, 0.01, 0.5])):
        ctx = context(now)
        _, extras, _ = algorithm.act(net, step, finals, ctx)
        assert extras["epsilon"].tolist() == pytest.approx(want, abs=1e-6)
    ctx = context(0.25, evaluating=True)
    assert algorithm.act(net, step, finals, ctx)[1]["epsilon"].tolist() == [0.25] * 3


def test_target_copies_are_counted_in_steps() -> None:
    algorithm, net = make("q", target_period=100)

    def same() -> bool:
        pairs = zip(net["online"].parameters(), net["target"].parameters(), strict=True)
        return all(torch.equal(a, b) for a, b in pairs)

    algorithm.after_steps(net, 0, 99)
    assert not same()
    algorithm.after_steps(net, 99, 105)
    assert same()


@pytest.mark.accept(98)
def test_a_learning_rate_of_zero_is_drawn_log_uniformly_and_recorded() -> None:
    def config(*words: str):
        return resolve(Request("async-q", "CartPole-v1", words, preset="none", environ={}))

    rates = [config("lr=0", f"seed={s}").config.algo.lr for s in range(40)]
    starts = [r.start for r in rates]
    assert all(1e-4 <= x <= 1e-2 for x in starts) and len(set(starts)) == 40
    assert 10 < sum(x < 1e-3 for x in starts) < 30, "half of them below the geometric mean"
    assert all(r.start == r.end for r in rates)
    again = config("lr=0", "seed=3")
    assert again.config.algo.lr.start == starts[3] and "sampled" in again.sources["algo.lr"]
    annealed = config("lr=0->0", "algo.lr_range=[1e-3, 2e-3]").config.algo.lr
    assert 1e-3 <= annealed.start <= 2e-3 and annealed.end == 0 and annealed.fraction == 1.0
    assert annealed.at(500, 1000) == pytest.approx(annealed.start / 2)
    assert config("lr=5e-3").config.algo.lr.start == 5e-3


def test_epsilons_that_contradict_each_other_are_refused() -> None:
    for bad in ({"epsilon": 0.05}, {"final_weights": (1.0,)}, {"final_epsilons": (2.0, 0.1, 0.1)}):
        with pytest.raises(ValueError):
            Config(**bad)
    plain = AsyncQ(Config(epsilon=0.05, final_epsilons=(), final_weights=()))
    assert plain.sampled_hparams(2, context()) == {} and plain.begin(2, context()) == ()
