"""Plan.periods: a named group steps in every k-th update, eager, captured and after a resume."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ludus import registry
from ludus.compute.cuda_graph import Streams
from ludus.contract import Fifo, Unroll, Values
from ludus.errors import LudusError
from ludus.fleets.hogwild.loop import check
from ludus.learn.captured import CapturedReplay, build_updates
from ludus.learn.eager import EagerUpdates
from ludus.learn.learner import Learner
from ludus.learn.periods import Periods
from ludus.run.build import build_loop
from ludus.run.state import pack, unpack
from ludus.schedules import ramp
from ludus.track.run_dir.rundir import RunDir
from ludus.types import Loss, Sample
from tests.contract.tiny import tiny
from tests.learn.toy import SPEC, Masked, Toy, transition

OBS = torch.tensor([[1.0, 2.0, 3.0], [0.0, 1.0, 0.0], [4.0, 0.0, 0.0], [0.0, 0.0, 5.0]])


class Delayed(Toy):
    """Group a is the critic, b the policy, whose loss is left out where it does not step."""

    def optimizer(self, net):
        two = net["online"]
        groups = [{"params": [two.a], "name": "a"}, {"params": [two.b], "name": "b"}]
        return torch.optim.Adam(groups, lr=0.0, fused=True)

    def loss(self, net, batch, ctx):
        self.seen.append((ctx.stepping, int(ctx.updates)))
        two, obs = net["online"], batch.obs
        # Both groups always have a gradient: the Learner, not the loss, keeps b where it is.
        value = (obs @ two.a) ** 2 + (obs @ two.b) ** 2
        extra = {"policy": (obs @ two.b).mean().detach()} if "b" in ctx.stepping else {}
        return Loss(value, {"count": ctx.updates.float(), **extra})


def learner(**plan) -> Learner:
    given = {"periods": {"b": 3}, "schedules": {"lr": ramp(0.1)}, **plan}
    return Learner(Delayed(**given), SPEC, seed=1)


def learn(it: Learner, obs=OBS) -> None:
    sample = Sample(transition(obs), torch.arange(len(obs)), torch.ones(len(obs)))
    it.learn(sample, Values(it.plan, 100).at(0))


def snapshot(it: Learner, name: str) -> list[torch.Tensor]:
    p = getattr(it.net["online"], name)
    return [p.detach().clone(), *(x.clone() for x in it.optimizer.state[p].values())]


def same(one, two) -> bool:
    return len(one) == len(two) and all(map(torch.equal, one, two))


def test_a_group_steps_in_every_third_update_and_its_state_waits() -> None:
    it, moved = learner(), {"a": [], "b": []}
    for _ in range(7):
        before = {name: snapshot(it, name) for name in moved}
        learn(it)
        for name, steps in moved.items():
            steps.append(not same(before[name], snapshot(it, name)))
    assert moved == {"a": [True] * 7, "b": [False, False, True, False, False, True, False]}
    both, only = frozenset("ab"), frozenset("a")
    assert [s for s, _ in it.algorithm.seen] == [only, only, both, only, only, both, only]
    assert [n for _, n in it.algorithm.seen] == list(range(7)), "ctx.updates: those before this one"
    assert float(it.optimizer.state[it.net["online"].b]["step"]) == 2
    got = it.take_metrics()
    assert got["count"] == 3 and "policy" in got


def test_without_periods_every_group_steps() -> None:
    it = learner(periods={})
    learn(it)
    assert it.algorithm.seen == [(frozenset("ab"), 0)]
    assert float(it.optimizer.state[it.net["online"].b]["step"]) == 1


def test_the_norm_is_of_the_groups_that_step() -> None:
    """A delayed group's gradient must not make the others' clipped steps shorter."""
    it = learner(clip="global", clip_norm=1e-3)
    learn(it)
    a = it.net["online"].a.grad
    assert it.net["online"].b.grad is None
    assert it.take_metrics()["grad_norm"] > 1 and float(a.norm()) == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize(
    ("periods", "said"),
    [({"c": 2}, "the parameter group c"), ({"a": 2, "b": 3}, "every parameter group")],
)
def test_periods_that_cannot_be(periods, said) -> None:
    with pytest.raises(LudusError) as caught:
        learner(periods=periods)
    assert caught.value.code == "E104" and said in str(caught.value)


def test_a_period_is_at_least_1() -> None:
    with pytest.raises(LudusError) as caught:
        learner(periods={"b": 0})
    assert caught.value.code == "E104"


def test_every_case_is_known_beforehand() -> None:
    """As many graphs are captured as there are sets of groups that step together."""
    groups = [{"params": [torch.ones(1)], "name": n} for n in "abcd"]
    groups.append({"params": [torch.ones(1)]})
    periods = Periods({"b": 2, "c": 3, "d": 4}, torch.optim.SGD(groups, lr=0.1))
    assert set(periods.cases()) == {periods.at(n) for n in range(1, 13)}
    assert periods.at(6) == frozenset("abc") and periods.at(4) == frozenset("abd")


def test_a_skipped_update_keeps_its_number() -> None:
    """The step of the policy that fell on it is lost; the others come when they would have."""
    it = learner()
    for n in range(1, 8):
        learn(it, OBS * float("nan") if n == 3 else OBS)
    stepping = ["b" in s for s, _ in it.algorithm.seen]
    assert stepping == [n % 3 == 0 for n in range(1, 8)]
    assert it.updates == 6 == int(it.ctx.updates) and it.skipped == 1


def test_hogwild_refuses_periods() -> None:
    algorithm = Delayed(view=Unroll(2), sampler=Fifo(), periods={"b": 2})
    cfg = tiny("a3c", "CartPole-v1")
    with pytest.raises(LudusError) as caught:
        check(cfg, algorithm, algorithm.optimizer(algorithm.build(SPEC)))
    assert caught.value.code == "E104" and "every k-th update" in str(caught.value)


# In a run: the torso and the head of a small Q-network or policy are two groups.
RUNS = {
    "dqn": ("capacity=2000", "warmup=32", "batch=8", "replay_ratio=4"),
    "ppo": ("rollout=8", "epochs=2", "minibatches=2"),
}


def loop_of(name, folder, *settings):
    cfg = tiny(name, "CartPole-v1", *RUNS[name], *settings)
    algorithm = registry.make(cfg.algo)
    algorithm.plan = replace(algorithm.plan, periods={"late": 3})
    algorithm.optimizer = lambda net: torch.optim.Adam(
        [
            {"params": list(net["online"].parameters())[:-2]},
            {"params": list(net["online"].parameters())[-2:], "name": "late"},
        ],
        lr=0.0,
        fused=True,
    )
    loop, _ = build_loop(cfg, algorithm, RunDir(folder))
    loop.barrier(0)
    return loop


def weights(loop) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in loop.learner.net.parameters()])


@pytest.mark.parametrize("name", RUNS)
def test_captured_periods_equal_eager_ones(name, tmp_path) -> None:
    captured = loop_of(name, tmp_path, "run.capture=on")
    eager = loop_of(name, tmp_path, "run.capture=on")  # which draws in the same way
    eager.updates = EagerUpdates(eager.store, eager.learner)
    assert captured.updates.mode.startswith("emulated")
    for loop in (captured, eager):
        while loop.learner.updates < 8:
            loop.iterate()
        loop.close()
        late = loop.learner.optimizer.param_groups[1]["params"][0]
        assert float(loop.learner.optimizer.state[late]["step"]) == loop.learner.updates // 3
        assert int(loop.learner.ctx.updates) == loop.learner.updates
    torch.testing.assert_close(weights(captured), weights(eager), rtol=1e-4, atol=1e-5)
    graphs = captured.updates.graph if name == "dqn" else captured.updates._update
    assert set(graphs.graphs) == {frozenset(), frozenset(["late"])}


def test_the_host_picks_a_graph_that_has_its_groups_built_in(tmp_path) -> None:
    """Whatever ctx.stepping is by then."""
    loop = loop_of("dqn", tmp_path, "run.capture=on")
    while loop.learner.updates < 5:
        loop.iterate()
    assert isinstance(loop.updates, CapturedReplay)
    learner, graphs = loop.learner, loop.updates.graph.graphs
    late = learner.optimizer.param_groups[1]["params"][0]
    for case in (frozenset(), frozenset(["late"])):
        learner.ctx.stepping = frozenset(["something else"])
        before = float(learner.optimizer.state[late]["step"])
        graphs[case].launch()
        assert float(learner.optimizer.state[late]["step"]) == before + len(case)
    loop.close()


def test_captured_metrics_are_means_over_the_updates_that_had_them() -> None:
    obs, mask = OBS.expand(2, 4, 3), torch.ones(2, 4, dtype=torch.bool)
    batch = Sample(Masked(obs, mask), torch.arange(4), torch.ones(4))
    it = learner(view=Unroll(2), sampler=Fifo(), epochs=7, batch=4, schedules={"lr": ramp(0.0)})

    class Once:
        plan, left = it.plan, 1

        def ready(self):
            return self.left > 0

        def sample(self):
            self.left -= 1
            return batch

    updates = build_updates(Once(), it, Streams(it.device), capture="on", overlap=False)
    stepped = []
    it.on_update = lambda metrics: stepped.append("policy" in metrics)
    updates.start(Values(it.plan, 100).at(0))
    updates.finish()
    got = it.take_metrics()
    assert stepped == [False, False, True, False, False, True, False]
    assert got["policy"] == pytest.approx(float(OBS.sum(1).mean())) and got["count"] == 3


def test_a_resumed_run_continues_the_phase(tmp_path) -> None:
    loop = loop_of("dqn", tmp_path)
    while loop.learner.updates < 4:
        loop.iterate()
    tensors, state = pack(loop)
    again = loop_of("dqn", tmp_path)
    unpack(again, tensors, state)
    assert again.learner.next_update == loop.learner.next_update
    assert int(again.learner.ctx.updates) == loop.learner.updates
    loop.close()
    again.close()
