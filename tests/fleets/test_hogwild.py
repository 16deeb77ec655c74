"""Hogwild without processes: several workers over one piece of shared memory, one after the other,
so that every number can be compared with the one an ordinary learner computes."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from ludus import registry
from ludus.contract import Episode, Fifo, Plan
from ludus.errors import LudusError
from ludus.fleets.hogwild.shared_parameters import Board, move_net, move_statistics, shared_layout
from ludus.fleets.hogwild.worker import Worker, WorkerLearner
from ludus.learn import autotune as measured
from ludus.learn.autotune import Choice, Way
from ludus.learn.learner import Learner
from ludus.nets.inputs import ImageInput
from ludus.process.shared_tensors import SharedTensors
from ludus.replay.episodes import EpisodeQueue
from ludus.run.build import build_loop
from ludus.track.run_dir.rundir import RunDir
from ludus.types import ArraySpec, Discrete, EnvSpec, Sample, Traj
from tests.contract.tiny import tiny

SPEC = EnvSpec("toy", ArraySpec((3,)), Discrete(4))
OPTIMIZERS = {
    "rmsprop": {"kind": "rmsprop", "eps": 0.1},
    "rmsprop from one": {"kind": "rmsprop", "eps": 0.01, "initial_square": 1.0},
    "momentum": {"kind": "sgd", "momentum": 0.9},
    "adam": {"kind": "adam"},
}


class Here:
    """Stands in for a context of processes: the memory is this process's own."""

    @staticmethod
    def RawArray(kind: str, size: int):  # noqa: N802 (multiprocessing's name)
        import ctypes

        return (ctypes.c_ubyte * size)()


def algorithm(**settings):
    from ludus.algos.async_q import AsyncQ, Config

    return AsyncQ(Config(target_period=10**9, lr=1e-2, **settings))


def sample(number: int) -> Sample:
    g = torch.Generator().manual_seed(number)
    flags = torch.zeros(6, 2, dtype=torch.bool)
    b = Traj(
        torch.randn(6, 2, 3, generator=g), torch.randint(4, (5, 2), generator=g),
        torch.randn(5, 2, generator=g), torch.ones(5, 2), flags[:-1], flags, ~flags[:-1],
        extras={"epsilon": torch.zeros(5, 2)},
    )  # fmt: skip
    return Sample(b, torch.arange(2), torch.ones(2))


VALUES = {"lr": torch.tensor(1e-2), "epsilon": torch.tensor(0.0), "warming": torch.tensor(0.0)}


def shared(algo, workers: int, *, together: bool = True, spec: EnvSpec = SPEC):
    """The main process's learner, and workers' learners over the memory it shares."""
    main = Learner(algo, spec, seed=3)
    copies = 1 if together else workers
    slab = SharedTensors.like(
        shared_layout(main.net, main.optimizer, copies) | Board.room(workers), Here
    )
    move_net(main.net, slab, fill=True)
    for c in reversed(range(copies)):
        move_statistics(main.optimizer, slab, c, fill=True)
    board = Board(slab)
    made = [
        WorkerLearner(algo, spec, seed=3, slab=slab, board=board, index=i, together=together)
        for i in range(workers)
    ]
    return main, made, board


def weights(learner) -> list[torch.Tensor]:
    return [p.detach().clone() for p in learner.net["online"].parameters()]


@pytest.mark.accept(82)
@pytest.mark.accept(94)
@pytest.mark.accept(95)
@pytest.mark.accept(96)
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("workers", [1, 3])
def test_taking_turns_over_shared_statistics_is_one_learner(kind, workers) -> None:
    """100 updates by workers in turn = 100 updates by one learner: the square averages, momentum
    and Adam's moments are one, and Adam corrects its bias by the updates of all."""
    algo = algorithm(optimizer=OPTIMIZERS[kind])
    plain = Learner(algo, SPEC, seed=3)
    main, made, board = shared(algo, workers)
    for k in range(100):
        plain.learn(sample(k), VALUES)
        made[k % workers].refresh()
        made[k % workers].learn(sample(k), VALUES)
    assert board.total("updates") == 100
    assert board.counts[:, 1].tolist() == [len(range(i, 100, workers)) for i in range(workers)]
    for a, b in zip(weights(plain), weights(main), strict=True):
        assert torch.equal(a, b)
    for p, q in zip(plain.params, main.params, strict=True):
        for key, value in plain.optimizer.state[p].items():
            if key != "step":  # each worker has its own
                assert torch.equal(value, main.optimizer.state[q][key]), key


@pytest.mark.accept(96)
def test_shared_adam_is_torchs_adam() -> None:
    algo = algorithm(optimizer={"kind": "adam"}, clip_norm=0.0)
    main, made, _ = shared(algo, 2)
    net = copy.deepcopy(main.net)
    for p, q in zip(net.parameters(), main.net.parameters(), strict=True):
        p.data = q.detach().clone()
    torchs = torch.optim.Adam(net["online"].parameters(), lr=1e-2)
    for k in range(100):
        torchs.zero_grad()
        algo.loss(net, sample(k).batch, made[0].ctx).value.sum().backward()
        torchs.step()
        made[k % 2].refresh()
        made[k % 2].learn(sample(k), VALUES)
    for a, b in zip(net["online"].parameters(), main.net["online"].parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


@pytest.mark.accept(82)
def test_local_statistics_are_each_workers_own() -> None:
    algo = algorithm(optimizer=OPTIMIZERS["adam"])
    main, made, _ = shared(algo, 2, together=False)
    for k in range(6):
        who = made[0] if k < 4 else made[1]
        who.refresh()
        who.learn(sample(k), VALUES)
    first, second = (m.optimizer.state[m.shared_params[0]] for m in made)
    assert float(first["step"]) == 4 and float(second["step"]) == 2
    assert not torch.equal(first["exp_avg_sq"], second["exp_avg_sq"])
    own = main.optimizer.state[main.params[0]]
    assert torch.equal(own["exp_avg_sq"], first["exp_avg_sq"]), "a checkpoint has the first one's"
    for a, b in zip(main.params, made[1].shared_params, strict=True):
        assert a.data_ptr() != 0 and torch.equal(a, b), "the weights are still shared"


def test_images_lie_in_every_workers_net_as_was_measured(tmp_path, monkeypatch) -> None:
    new = Choice(Way("fp32", "channels_last"), "just measured")
    monkeypatch.setattr(measured, "measure", lambda *_: new)
    loop, made = built(tmp_path, "run.precision=auto", env="ludus/IdentityPixels-v0")
    for net in (loop.learner.net, *(worker.learner.net for worker in made)):
        inputs = [m for m in net.modules() if isinstance(m, ImageInput)]
        assert inputs and all(m.channels_last for m in inputs)
    assert loop.compute_info["order"] == "channels_last"


def test_gradients_are_lent_not_shared_and_targets_are_read_in_place() -> None:
    main, (one, two), _ = shared(algorithm(), 2)
    one.refresh()
    one.learn(sample(0), VALUES)
    assert all(p.grad is None for p in (*two.shared_params, *main.params))
    before = two.params[0].detach().clone()
    two.refresh()
    assert not torch.equal(before, two.params[0]) and torch.equal(two.params[0], main.params[0])
    with torch.no_grad():
        next(main.net["target"].parameters()).fill_(7.0)
    assert (next(two.net["target"].parameters()) == 7).all()


def built(
    tmp_path, *settings: str, name: str = "async-q", actors: int = 2, env: str = "CartPole-v1"
):
    """The loop of a run, and its workers in this process."""
    words = ("run.fleet=hogwild", f"run.actors={actors}", "env.num=1", *settings)
    cfg = tiny(name, env, *words)
    run = RunDir.create(tmp_path, cfg.env.id, cfg.algo_name, cfg.run.seed)
    loop, _ = build_loop(cfg, registry.make(cfg.algo), run)
    loop._fill()
    made = [Worker(loop.fleet.make_job(i, 0, 0, {})) for i in range(actors)]
    return loop, made


def test_a_first_adam_update_outlives_that_another_worker_begins_its_own(monkeypatch) -> None:
    main, (one, two), _ = shared(algorithm(), 2)
    add = torch._foreach_add_

    def raised(steps, amount) -> None:
        add(steps, amount)
        two.prepare_step()  # between Adam's count and what it divides by

    monkeypatch.setattr(torch, "_foreach_add_", raised)
    one.learn(sample(0), VALUES)
    assert all(bool(p.isfinite().all()) for p in weights(main))


def test_what_a_checkpoint_calls_adams_steps_are_the_updates_of_all_workers(tmp_path) -> None:
    loop, made = built(tmp_path)
    for worker in (*made, *made, made[0]):
        worker.fragment()
    loop._gather()
    states = loop.learner.optimizer.state_dict()["state"].values()
    assert {float(state["step"]) for state in states} == {loop.learner.updates} == {5}


def test_a_queue_of_whole_episodes_takes_the_counters_of_all_workers(tmp_path) -> None:
    loop, made = built(tmp_path)
    loop.store = EpisodeQueue(Plan(Episode(1), Fifo()).for_envs(2), loop.learner.ctx.spec, 2)
    for worker in made:
        worker.fragment()
    loop.fleet.over = True  # nobody is left who could be running
    loop._gather()
    assert loop.store.state()[1]["steps_inserted"] == loop.step > 0


@pytest.mark.accept(98)
def test_schedules_follow_the_steps_of_all_workers(tmp_path) -> None:
    settings = ("steps=1000", "lr=1e-2->0", "epsilon=1->0.1@500")
    loop, (one, two) = built(tmp_path, *settings)
    one.fragment()
    assert one.values.numbers["lr"] == pytest.approx(1e-2)
    loop.fleet.board.counts[1, 0] = 400  # the other one was busy
    done = loop.fleet.board.steps
    one.fragment()
    assert one.values.numbers["lr"] == pytest.approx(1e-2 * (1 - done / 1000))
    assert one.values.numbers["epsilon"] == pytest.approx(1 - 0.9 * done / 500)
    rate = one.learner.optimizer.param_groups[0]["lr"]
    assert rate == pytest.approx(one.values.numbers["lr"])
    two.fragment()
    assert two.values.numbers["lr"] < rate


@pytest.mark.accept(19)
def test_whoever_passes_the_period_copies_the_target_once(tmp_path) -> None:
    loop, (one, two) = built(tmp_path, "target_period=100", "t_max=8")
    net, board = loop.learner.net, loop.fleet.board

    def same() -> bool:
        pairs = zip(net["online"].parameters(), net["target"].parameters(), strict=True)
        return all(torch.equal(a, b) for a, b in pairs)

    while board.steps < 100:
        assert board.steps == 0 or not same()
        two.fragment()
    assert same(), "the count of all had passed a multiple of 100"
    one.fragment()
    two.fragment()
    assert not same(), "and not again before the next"


@pytest.mark.accept(101)
def test_drawn_epsilons_differ_by_actor_and_are_recorded(tmp_path) -> None:
    loop, made = built(tmp_path, actors=8)
    drawn = [w.collector.runner.states[0].tolist() for w in made]
    assert loop.sampled_hparams == {"epsilon": drawn}
    assert len({tuple(x) for x in drawn}) > 1, "not one draw for all"
    again = Worker(loop.fleet.make_job(3, 1, 0, {}))  # a replacement of number 3
    assert again.collector.runner.states[0].tolist() == drawn[3]
    assert again.envs.seeds != made[3].envs.seeds, "but another branch of the seed"
    slots = [w.envs.first_env for w in made]
    assert slots == list(range(8)) and len({w.envs.seeds[0] for w in made}) == 8


@pytest.mark.accept(101)
def test_drawn_epsilons_are_those_of_all_groups(tmp_path) -> None:
    """What the record says is what every slot uses, and what its episodes and metrics carry."""
    words = ("env.groups=2", "env.num=4", "t_max=16")
    loop, made = built(tmp_path, *words, actors=4)
    used = [[x for state in w.collector.runner.states for x in state.tolist()] for w in made]
    assert loop.sampled_hparams == {"epsilon": used}
    assert any(u[:2] != u[2:] for u in used), "the second group does not repeat the first"
    result: dict[int, float] = {}
    for index, worker in enumerate(made):
        while not any(slot // 4 == index for slot in result):
            worker.fragment()
            for _, episode in worker.take_report().episodes:
                result[episode.env] = episode.info["epsilon"]
                loop.actors.add(episode)
    flat = [x for actor in used for x in actor]
    assert result == {slot: flat[slot] for slot in result}
    shown = {k: v for k, v in loop.actors.metrics().items() if k.startswith("epsilon_")}
    least = {f"epsilon_{a}": min(flat[s] for s in result if s // 4 == a) for a in range(4)}
    assert shown == least


def test_every_counter_is_written_by_its_worker_alone(tmp_path) -> None:
    loop, (one, two) = built(tmp_path, "t_max=8")
    for _ in range(3):
        one.fragment()
    two.fragment()
    counts = loop.fleet.board.counts
    assert counts[:, 1].tolist() == [3, 1] and 20 <= counts[0, 0] <= 24
    np.testing.assert_array_equal(counts[:, 0], counts[:, 3])  # every step was learned from, once


def test_what_cannot_be_shared_is_refused(tmp_path) -> None:
    with pytest.raises(LudusError, match="replay") as caught:
        built(tmp_path, name="dqn")
    assert caught.value.code == "E104"


@pytest.mark.accept(105)
@pytest.mark.parametrize("torso", ["nips", "nature"])
@pytest.mark.parametrize("name", ["a3c", "async-q", "async-sarsa", "async-nstep-q"])
def test_both_torsos_learn_under_every_asynchronous_algorithm(name, torso) -> None:
    """In shared memory that has room for them, statistics included: two workers take turns."""
    image = ArraySpec((84, 84), "uint8", stack=4, layout="hw")
    spec = EnvSpec("screen", image, Discrete(6))
    more = ("lstm=16",) if name == "a3c" else ()
    cfg = tiny(name, "CartPole-v1", f"torso={{kind: {torso}}}", *more)
    algo = registry.make(cfg.algo)
    main, made, board = shared(algo, 2, spec=spec)
    ctx, g = main.ctx, torch.Generator().manual_seed(0)
    flags = torch.zeros(4, 2, dtype=torch.bool)
    b = Traj(
        torch.randint(256, (4, 2, 4, 84, 84), dtype=torch.uint8, generator=g),
        torch.randint(6, (3, 2), generator=g), torch.ones(3, 2), torch.ones(3, 2), flags[:-1],
        flags, ~flags[:-1], extras={"epsilon": torch.zeros(3, 2)},
        state=algo.begin(2, ctx) if name == "a3c" else (),
    )  # fmt: skip
    size = {"nips": (2, 16, 32), "nature": (3, 32, 64)}[torso]
    convolutions = [m for m in main.net["online"].modules() if isinstance(m, nn.Conv2d)]
    assert (len(convolutions), *(m.out_channels for m in convolutions[:2])) == size
    for count, worker in enumerate(made, 1):
        before = [p.detach().clone() for p in main.params]
        worker.refresh()
        worker.learn(Sample(b, torch.arange(2), torch.ones(2)), VALUES)
        assert board.total("updates") == count
        moved = [not torch.equal(p, old) for p, old in zip(main.params, before, strict=True)]
        assert all(moved[: 2 * len(convolutions)]), "the convolutions learn"
    made[0].refresh()
    for a, p in zip(made[0].params, main.params, strict=True):
        assert torch.equal(a, p), "and everybody has them"
