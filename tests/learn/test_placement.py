"""What every `auto` becomes, that it is said and remembered, and the errors around it."""

from __future__ import annotations

import pytest
import torch

from ludus import registry
from ludus.cli.main import run as command
from ludus.compute.compile import Compiled
from ludus.contract import Episode, Fifo, NStep, Plan, Uniform, Unroll
from ludus.envs.make import probe_spec
from ludus.errors import LudusError
from ludus.learn import autotune as measured
from ludus.learn import placement as compute
from ludus.learn.autotune import Choice, Way
from ludus.learn.learner import Learner
from ludus.learn.placement import (
    CONTEXT_BYTES,
    Compute,
    Place,
    check_devices,
    decide,
    place_replay,
    tune,
)
from ludus.nets.inputs import ImageInput, Order
from ludus.nets.torsos import CNNTorso, ImpalaTorso
from ludus.precheck import precheck
from ludus.run.build import build_loop
from ludus.run.session import train_run
from ludus.track.checkpoint.reader import load
from ludus.track.run_dir.rundir import RunDir
from ludus.track.run_dir.status import read_status
from tests.contract.tiny import run, tiny

GB = 10**9
CUDA = torch.device("cuda")
PIXELS = "ludus/IdentityPixels-v0"


def parts(name, env, *settings):
    cfg = tiny(name, env, *settings)
    return cfg, registry.make(cfg.algo), probe_spec(cfg.env)


@pytest.fixture
def gpu(monkeypatch):
    """A GPU with 100 GB free, for those who only ask."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (100 * GB, 141 * GB))
    monkeypatch.setattr(compute, "check_memory", checked := Checked())
    return checked


class Checked:
    """Stands for check_memory: what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple] = []

    def __call__(self, needed, free=None, *, instead=""):
        self.asked.append((needed, free))
        if free is not None and needed > free * 0.95:
            raise LudusError("E310", "too much", fix=instead)


@pytest.mark.parametrize(
    ("where", "gigabytes", "pinned", "said"),
    [
        ("auto", 8, False, "device"), ("auto", 75, False, "device"),
        ("auto", 80, True, "pinned host: 80 GB do not fit into 76 GB of GPU memory"),
        ("host", 8, True, "pinned host: asked for"), ("device", 75, False, "device"),
    ],
)  # fmt: skip
def test_rows_lie_on_the_gpu_where_they_fit(gpu, where, gigabytes, pinned, said) -> None:
    cfg = tiny("dqn", "CartPole-v1", f"run.replay_on={where}")
    plan = registry.make(cfg.algo).plan
    assert place_replay(cfg, plan, gigabytes * GB, CUDA) == Place(pinned, said)
    assert gpu.asked == ([(gigabytes * GB, None)] if pinned else []), "the host, if it is the host"


def test_replay_set_to_the_gpu_that_does_not_fit_is_refused(gpu) -> None:
    cfg = tiny("dqn", "CartPole-v1", "run.replay_on=device")
    with pytest.raises(LudusError, match="E310") as caught:
        place_replay(cfg, registry.make(cfg.algo).plan, 80 * GB, CUDA)
    assert "run.replay_on=auto" in caught.value.fix


@pytest.mark.parametrize(
    ("settings", "others"),
    [
        ((), 0),
        (("actor.device=cuda", "fleet=processes", "actors=40"), 20),
        (("actor.device=cuda",), 0),
        (("eval.live=true", "eval.device=cuda"), 1),
        (("eval.live=true", "eval.device=cuda:0"), 1),
        (("eval.live=true", "eval.device=cuda:1"), 0),
        (("actor.device=cuda:0", "fleet=processes", "actors=40"), 40),
        (("actor.device=cuda:1", "fleet=processes", "actors=40"), 0),
    ],
)
def test_other_processes_on_the_gpu_need_room_too(gpu, monkeypatch, settings, others) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(compute, "RESERVE", 0.0)
    cfg = tiny("dqn", "CartPole-v1", *settings)
    plan, fits = registry.make(cfg.algo).plan, int(0.8 * (100 * GB - others * CONTEXT_BYTES))
    assert place_replay(cfg, plan, fits, CUDA).said == "device"
    assert place_replay(cfg, plan, fits + GB, CUDA).said.startswith("pinned host")


@pytest.mark.parametrize("plan", [Plan(Unroll(4), Uniform(), 4, capacity=100),
                                  Plan(Episode(1), Fifo(), capacity=100)])  # fmt: skip
def test_only_transitions_and_sequences_can_lie_elsewhere(gpu, plan) -> None:
    cfg = tiny("dqn", "CartPole-v1")
    assert place_replay(cfg, plan, 8 * GB, CUDA) == Place(False, "device")
    with pytest.raises(LudusError, match="E310"):
        place_replay(cfg, plan, 80 * GB, CUDA)


def test_on_a_cpu_and_for_queues_the_host_is_asked(gpu) -> None:
    cfg = tiny("dqn", "CartPole-v1", "run.replay_on=host")
    cpu = torch.device("cpu")
    host = place_replay(cfg, Plan(NStep(), Uniform(), 4, capacity=9), 5, cpu)
    assert host == Place(False, "host")
    assert place_replay(cfg, Plan(Unroll(4), Fifo(), 4), 6, CUDA) == Place(False, "")
    assert gpu.asked == [(5, None), (6, None)]


def test_a_gpu_that_is_not_there_is_refused_before_anything_is_written(tmp_path, monkeypatch,
                                                                       capsys) -> None:  # fmt: skip
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    cfg, _, _ = parts("dqn", "CartPole-v1", "run.device=cuda")
    for ask in (lambda: check_devices(cfg), lambda: precheck(cfg)):
        with pytest.raises(LudusError) as caught:
            ask()
        assert caught.value.code == "E104" and "run.device=cpu" in caught.value.fix
    words = ["train", "dqn", "CartPole-v1", "run.device=cuda", "--runs-dir", str(tmp_path)]
    assert command(words) == 2 and not list(tmp_path.iterdir())
    assert "E104" in capsys.readouterr().err


@pytest.mark.accept(81)
def test_the_learner_computes_on_the_gpu_that_was_asked_for(monkeypatch) -> None:
    """And it is the current one: what names no stream means the first GPU's otherwise."""
    current = []
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    for asked in ("cpu", "cuda", "cuda:1"):
        found = decide(*parts("dqn", "CartPole-v1", f"run.device={asked}"))
        assert found.device == torch.device(asked)
    assert current == [torch.device("cuda:1")]


def test_what_was_decided_is_not_measured_again(monkeypatch) -> None:
    cfg, algorithm, spec = parts("dqn", PIXELS, "run.device=cpu")
    new = Choice(Way("bf16", "channels_last"), "just measured")
    monkeypatch.setattr(measured, "measure", lambda *_: new)
    fresh = decide(cfg, algorithm, spec)
    assert (fresh.precision, fresh.order) == ("bf16", "channels_last")
    before = {"device": "cpu", "precision": "fp32", "why_precision": "measured long ago"}
    again = decide(cfg, algorithm, spec, before | {"order": "contiguous"})
    assert (again.precision, again.order) == ("fp32", "contiguous")
    assert again.why_precision == "measured long ago"
    old = decide(cfg, algorithm, spec, before)
    assert old.order == "", "a run from before orders were measured keeps the torso's"
    elsewhere = decide(cfg, algorithm, spec, before | {"device": "cuda"})
    assert elsewhere.precision == "bf16", "another machine decides for itself"
    result, _, _ = parts("dqn", PIXELS, "run.device=cpu", "run.precision=bf16")
    typed = decide(result, algorithm, spec, before | {"order": "contiguous"})
    assert (typed.precision, typed.order) == ("bf16", ""), "what is typed wins, unmeasured"
    same, _, _ = parts("dqn", PIXELS, "run.device=cpu", "run.precision=fp32")
    assert decide(same, algorithm, spec, before | {"order": "contiguous"}).order == "contiguous"


def test_an_algorithm_that_refuses_made_up_data_runs_in_float32(monkeypatch) -> None:
    cfg, algorithm, spec = parts("dqn", PIXELS, "run.device=cpu")

    def refuses(*_):
        raise KeyError("mine")

    monkeypatch.setattr(measured, "measure", refuses)
    decided = decide(cfg, algorithm, spec)
    assert (decided.precision, decided.order) == ("fp32", "")
    assert decided.why_precision == "not measured: KeyError: 'mine'"


def test_a_resumed_run_keeps_its_precision_and_order(tmp_path, monkeypatch) -> None:
    cfg = tiny("dqn", PIXELS, "steps=100", "run.device=cpu")
    paid = Choice(Way("bf16", "channels_last"), "it paid")
    monkeypatch.setattr(measured, "measure", lambda *_: paid)
    path = run(cfg, tmp_path).path
    saved = load(path).state["compute"]
    assert (saved["precision"], saved["order"]) == ("bf16", "channels_last")
    monkeypatch.setattr(measured, "measure", lambda *_: Choice(Way("fp32", "contiguous"), "not"))
    longer = tiny("dqn", PIXELS, "steps=140", "horizon=100", "run.device=cpu")
    train_run(longer, registry.make(longer.algo), path=path, resume=True, quiet=True)
    now = read_status(RunDir(path))["compute"]
    assert (now["precision"], now["order"]) == ("bf16", "channels_last")
    assert now["why_precision"] == "it paid"


@pytest.mark.parametrize("overlap", ["on", "off"])
@pytest.mark.parametrize(("order", "want"), [("contiguous", False), ("channels_last", True)])
def test_the_order_reaches_every_net_of_a_run(tmp_path, monkeypatch, order, want, overlap) -> None:
    monkeypatch.setattr(measured, "measure", lambda *_: Choice(Way("fp32", order), ""))
    cfg = tiny("dqn", PIXELS, "run.device=cpu", f"run.overlap={overlap}")
    loop, _ = build_loop(cfg, registry.make(cfg.algo), RunDir(tmp_path))
    try:
        loop.fleet.publish(loop.learner.net)
        for net in (loop.learner.net, loop.fleet.net):
            inputs = [m for m in net.modules() if isinstance(m, ImageInput)]
            assert inputs and all(m.channels_last is want for m in inputs)
        assert loop.compute_info["order"] == order
    finally:
        loop.fleet.close()


class Wanting(torch.nn.Module):
    """A torso of somebody's own that is faster channels last."""

    order = Order(gpu=True)

    def __init__(self, gpu: bool = True) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(2, 3, 3)
        self.order = Order(gpu=gpu)
        self.compiled: list[dict] = []

    def compile(self, **options) -> None:
        self.compiled.append(options)


@pytest.mark.parametrize("compiled", [True, False])
def test_on_a_gpu_a_torso_says_itself_that_it_wants_channels_last(compiled) -> None:
    net = torch.nn.ModuleDict({"a": Wanting(), "b": Wanting(gpu=False)})
    asked = Compiled() if compiled else None
    tune(net, Compute(CUDA, "bf16", "auto", overlap=False, compiled=asked))
    last = [m.conv.weight.is_contiguous(memory_format=torch.channels_last) for m in net.values()]
    assert last == [True, False]
    assert [len(m.compiled) for m in net.values()] == [compiled, False]
    assert asked is None or asked.mode == "1 torso"
    assert ImpalaTorso.order.gpu and not CNNTorso.order.gpu


@pytest.mark.parametrize(
    ("device", "name", "overlap"),
    [("cpu", "dqn", False), ("cuda", "dqn", True), ("cuda", "ppo", False)],
)
def test_overlap_is_for_replay_on_a_gpu(monkeypatch, device, name, overlap) -> None:
    cfg, algorithm, spec = parts(name, "CartPole-v1")
    monkeypatch.setattr(compute, "device_of", lambda *_: torch.device(device))
    with monkeypatch.context() as patch:
        patch.setattr(torch.backends.cudnn, "benchmark", False)
        patch.setattr(torch, "set_float32_matmul_precision", lambda _: None)
        decided = decide(cfg, algorithm, spec)
    assert decided.overlap is overlap and decided.captured is (device == "cuda")
    result = Compute(torch.device(device), "fp32", "off", overlap)
    assert not result.captured


def test_capture_that_was_asked_for_and_cannot_be_is_refused(tmp_path) -> None:
    settings = ("run.capture=on", "rollout=5", "minibatches=4")  # 10 rows in 4 parts
    cfg = tiny("ppo", "CartPole-v1", *settings)
    with pytest.raises(LudusError) as caught:
        build_loop(cfg, registry.make(cfg.algo), RunDir(tmp_path))
    assert caught.value.code == "E104" and caught.value.exit_code == 2
    assert "10 rows do not divide into 4 equal minibatches" in caught.value.what
    assert "run.capture=auto" in caught.value.fix


def test_the_reason_for_eager_updates_stands_in_the_status(tmp_path, capsys, monkeypatch) -> None:
    """`auto` where there is a GPU, of a plan that cannot be captured."""
    from ludus.learn import captured as updates

    real = updates.build_updates

    def fallen_back(store, learner, streams, **_):
        made = real(store, learner, streams, capture="off", overlap=False)
        made.mode = f"eager: {updates.why_eager(store, learner)}"
        return made

    monkeypatch.setattr("ludus.run.build.build_updates", fallen_back)
    path = run(tiny("dqn", "CartPole-v1", "steps=100"), tmp_path).path
    capsys.readouterr()
    assert command(["status", str(path)]) == 0
    said = next(x for x in capsys.readouterr().out.splitlines() if x.startswith("compute"))
    assert "device cpu, precision fp32, updates eager: the replay draws on the host" in said


@pytest.mark.accept(90)
def test_out_of_gpu_memory_is_one_clear_error_and_the_checkpoint_stays(
    tmp_path, monkeypatch, capsys
) -> None:
    gradients = Learner._gradients

    def full(self, batch, weight):
        if self.updates < 40:
            return gradients(self, batch, weight)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (GB, 141 * GB))
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda *_: 139 * GB)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore")

    monkeypatch.setattr(Learner, "_gradients", full)
    words = ["train", "dqn", "CartPole-v1", "steps=1000", "warmup=64", "batch=16", "env.num=2",
             "replay_ratio=4", "checkpoint_every=100", "tensorboard=off",
             "run.device=cpu"]  # fmt: skip
    code = command([*words, "--quiet", "--runs-dir", str(tmp_path), "--run", "x"])
    monkeypatch.undo()
    assert code == 4
    said = capsys.readouterr().err
    assert "E311" in said and "Tried to allocate 2.00 GiB" in said and "Traceback" not in said
    assert "139 GB" in said and "1 GB of 141 GB is free" in said
    assert "run.replay_on=host" in said and "algo.batch" in said and "batch (16)" in said
    path = tmp_path / "x"
    saved = load(path)
    assert saved.resumable and 100 <= saved.step < 400 and 0 < saved.state["updates"] <= 40
    status = read_status(RunDir(path))
    assert status["state"] == "failed" and "E311" in status["reason"]
    assert command(["resume", str(path), "run.replay_on=host", "--quiet"]) == 0, "the way out"
    assert load(path).step >= 1000


def test_out_of_gpu_memory_while_resuming(tmp_path, monkeypatch, capsys) -> None:
    words = ["dqn", "CartPole-v1", "steps=300", "warmup=64", "batch=16", "tensorboard=off"]
    assert command(["train", *words, "--quiet", "--runs-dir", str(tmp_path), "--run", "x"]) == 0
    before = {p: p.read_bytes() for p in (tmp_path / "x").rglob("*") if p.is_file()}

    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB.")

    monkeypatch.setattr("ludus.run.recording.recorder.unpack", full)
    assert command(["resume", str(tmp_path / "x"), "steps=+100", "--quiet"]) == 4
    said = capsys.readouterr().err
    assert "E311" in said and "Tried to allocate 9.00 GiB" in said and "Traceback" not in said
    assert all(p.read_bytes() == old for p, old in before.items())


def test_out_of_gpu_memory_before_the_first_step(tmp_path, monkeypatch, capsys) -> None:
    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB.")

    monkeypatch.setattr("ludus.run.build.build_store", full)
    words = ["train", "dqn", "CartPole-v1", "--quiet", "--runs-dir", str(tmp_path)]
    assert command(words) == 4
    assert "E311" in capsys.readouterr().err
