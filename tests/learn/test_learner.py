"""The Learner against gradients worked out by hand: weights, masks, clipping, minibatches, lr."""

from __future__ import annotations

import pytest
import torch

from ludus import registry
from ludus.contract import Fifo, Prioritized, Unroll, Values
from ludus.learn.learner import Learner
from ludus.schedules import ramp
from ludus.types import Sample
from tests.contract.tiny import NAMES, tiny
from tests.learn.toy import SPEC, Masked, Toy, transition

OBS = torch.tensor([[1.0, 2.0, 3.0], [0.0, 1.0, 0.0], [4.0, 0.0, 0.0], [0.0, 0.0, 5.0]])


def learner(**plan) -> Learner:
    return Learner(Toy(**plan), SPEC, seed=1)


def learn(it: Learner, sample: Sample, step: int = 0, horizon: int = 100):
    return it.learn(sample, Values(it.plan, horizon).at(step))


def moved(it: Learner) -> tuple[torch.Tensor, torch.Tensor]:
    """How far SGD with lr 1 went: the gradients it was given."""
    two = it.net["online"]
    return (1 - two.a).detach(), (1 - two.b).detach()


def sample(weight=None) -> Sample:
    weight = torch.ones(4) if weight is None else weight
    return Sample(transition(OBS), torch.arange(4), weight)


@pytest.mark.accept(3)
@pytest.mark.parametrize(("reduce", "rows"), [("mean", 4.0), ("sum", 1.0)])
def test_importance_weights_are_applied_once(reduce, rows) -> None:
    weight = torch.tensor([1.0, 0.5, 0.25, 0.0])
    it = learner(reduce=reduce, sampler=Prioritized())
    priority = learn(it, sample(weight))
    want = (weight[:, None] * OBS).sum(0) / rows
    torch.testing.assert_close(moved(it)[0], want)
    torch.testing.assert_close(moved(it)[1], 10 * want)
    torch.testing.assert_close(priority, 11 * OBS.sum(1))  # not weighted


@pytest.mark.accept(103)
@pytest.mark.parametrize("reduce", ["mean", "sum"])
def test_masked_rows_contribute_nothing(reduce) -> None:
    """Whatever they hold."""
    it = learner(reduce=reduce)
    obs = OBS.clone()
    obs[1] = 1e30
    mask = torch.tensor([True, False, True, True])
    learn(it, Sample(Masked(obs, mask), torch.arange(4), torch.ones(4)))
    want = OBS[[0, 2, 3]].sum(0) / (3 if reduce == "mean" else 1)
    torch.testing.assert_close(moved(it)[0], want)
    assert it.updates == 1


def test_a_batch_of_nothing_but_masked_rows_moves_nothing() -> None:
    it = learner()
    batch = Masked(OBS, torch.zeros(4, dtype=torch.bool))
    learn(it, Sample(batch, torch.arange(4), torch.ones(4)))
    assert not moved(it)[0].any() and it.skipped == 0


CLIPS = {
    "none": lambda a, b: (a, b),
    "global": lambda a, b: (a * 0.5 / torch.cat([a, b]).norm(), b * 0.5 / torch.cat([a, b]).norm()),
    "group": lambda a, b: (a * 0.5 / a.norm(), b * 0.5 / b.norm()),
    "layer": lambda a, b: (a * 0.5 / a.norm(), b * 0.5 / b.norm()),
}


@pytest.mark.accept(102)
@pytest.mark.parametrize("clip", CLIPS)
def test_clipping(clip) -> None:
    it = learner(clip=clip, clip_norm=0.5)
    learn(it, sample())
    a, b = OBS.mean(0), 10 * OBS.mean(0)
    for got, want in zip(moved(it), CLIPS[clip](a, b), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    # What is reported is the norm before clipping.
    assert it.take_metrics()["grad_norm"] == pytest.approx(float(torch.cat([a, b]).norm()))


@pytest.mark.accept(102)
def test_groups_and_layers_differ_where_a_group_has_several_layers() -> None:
    class OneGroup(Toy):
        def optimizer(self, net):
            return torch.optim.SGD(net.parameters(), lr=0.0)

    a, b = OBS.mean(0), 10 * OBS.mean(0)
    whole = torch.cat([a, b]).norm()
    for clip, want in (("group", a * 0.5 / whole), ("layer", a * 0.5 / a.norm())):
        it = Learner(OneGroup(clip=clip, clip_norm=0.5), SPEC, seed=1)
        learn(it, sample())
        torch.testing.assert_close(moved(it)[0], want, rtol=1e-4, atol=1e-5)


@pytest.mark.accept(102)
@pytest.mark.parametrize("name", NAMES)
def test_settings_choose_how_an_algorithm_clips(name) -> None:
    def clip(*settings: str) -> tuple[str, float]:
        plan = registry.make(tiny(name, "CartPole-v1", *settings).algo).plan
        return plan.clip, plan.clip_norm

    assert clip("clip_norm=7") == ("global", 7.0)
    assert clip("clip_norm=7", "clip_by=layer") == ("layer", 7.0)
    assert clip("clip_norm=0", "clip_by=layer") == clip("clip_norm=0") == ("none", 0.0)


@pytest.mark.accept(102)
@pytest.mark.parametrize("clip", ["global", "group", "layer"])
def test_small_gradients_are_left_alone(clip) -> None:
    it = learner(clip=clip, clip_norm=1e3)
    learn(it, sample())
    torch.testing.assert_close(moved(it)[0], OBS.mean(0))


@pytest.mark.accept(99)
@pytest.mark.parametrize("power", [1.0, 2.0, 0.5])
def test_polynomial_decay_reaches_the_optimizer_and_stops_at_the_end_value(power) -> None:
    it = learner(schedules={"lr": ramp(f"1->0.1@80^{power}")})
    for step in (0, 20, 40, 80, 1000):
        learn(it, sample(), step)
        left = max(0.0, 1 - step / 80)
        want = 0.1 + 0.9 * left**power
        assert [g["lr"] for g in it.optimizer.param_groups] == pytest.approx([want, want])


def test_a_group_may_follow_a_schedule_of_its_own() -> None:
    it = learner(schedules={"lr": ramp(1.0), "lr_b": ramp("0.5->0@100")})
    learn(it, sample(), step=50)
    assert [g["lr"] for g in it.optimizer.param_groups] == pytest.approx([1.0, 0.25])


@pytest.mark.parametrize(
    ("minibatches", "sizes"),
    [(2, [12, 12]), (5, [5, 5, 5, 5, 4]), (7, [4, 4, 4, 3, 3, 3, 3]), (1, [24])],
)
def test_every_row_once_per_epoch_in_a_new_order(minibatches, sizes) -> None:
    it = learner(view=Unroll(6), sampler=Fifo(), epochs=3, minibatches=minibatches)
    obs = torch.arange(72.0).reshape(6, 4, 3)  # [T, B, 3]
    mask = torch.ones(6, 4, dtype=torch.bool)
    learn(it, Sample(Masked(obs, mask), torch.arange(4), torch.ones(4)))
    seen = [batch.obs[:, 0] for batch in it.algorithm.seen]
    assert [len(x) for x in seen] == sizes * 3 and it.updates == len(seen)
    epochs = [torch.cat(seen[i : i + minibatches]) for i in range(0, len(seen), minibatches)]
    for epoch in epochs:
        assert sorted(epoch.tolist()) == obs[..., 0].flatten().tolist()
    assert len({tuple(e.tolist()) for e in epochs}) == 3


def test_metrics_are_means_since_the_last_look() -> None:
    it = learner(schedules={"lr": ramp(0.0)})
    for _ in range(3):
        learn(it, sample())
    got = it.take_metrics()
    assert got["rows"] == 4 and got["loss"] == pytest.approx(float((11 * OBS.sum(1)).mean()))
    assert it.take_metrics() == {}


def test_metrics_may_differ_between_updates_and_take_no_room() -> None:
    class Moody(Toy):
        def loss(self, net, batch, ctx):
            loss, turn = super().loss(net, batch, ctx), len(self.seen)
            odd = {"odd": torch.tensor(float(turn))} if turn % 2 else {}
            return loss._replace(metrics={"turn": torch.tensor(float(turn)), **odd})

    it = Learner(Moody(schedules={"lr": ramp(0.0)}), SPEC, seed=1)
    for _ in range(5):
        learn(it, sample())
    assert len(it._sums) == 4, "loss, gradient norm, turn, odd: one sum each"
    got = it.take_metrics()
    assert got["turn"] == 3 and got["odd"] == 3  # of 1 .. 5, of 1 3 5
    learn(it, sample())
    last = it.take_metrics()
    assert last["turn"] == 6 and "odd" not in last


def test_initial_weights_follow_the_seed_alone() -> None:
    class Drawn(Toy):
        def build(self, spec):
            return torch.nn.ModuleDict({"online": torch.nn.Linear(3, 3)})

        def optimizer(self, net):
            return torch.optim.SGD(net.parameters(), lr=0.0)

    torch.manual_seed(1)
    one = Learner(Drawn(), SPEC, seed=5).net["online"].weight
    torch.manual_seed(2)
    two, other = (Learner(Drawn(), SPEC, seed=s).net["online"].weight for s in (5, 6))
    assert torch.equal(one, two) and not torch.equal(one, other)
