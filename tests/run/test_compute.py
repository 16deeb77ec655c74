"""What every `auto` becomes, that it is said and remembered, and the errors around it."""

from __future__ import annotations

import pytest
import torch

from ludus import registry
from ludus.api import precheck
from ludus.cli.main import run as command
from ludus.contract import Episode, Fifo, NStep, Plan, Uniform, Unroll
from ludus.envs.make import probe_spec
from ludus.errors import LudusError
from ludus.run import compute
from ludus.run.build import build_loop
from ludus.run.compute import Compute, decide, device_of, measured_precision, place_replay
from ludus.run.learner import Learner
from ludus.run.session import train_run
from ludus.track.restore import load
from ludus.track.rundir import RunDir
from ludus.track.status import read_status
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
    ("where", "gigabytes", "pinned"),
    [
        ("auto", 8, False), ("auto", 75, False), ("auto", 80, True), ("host", 8, True),
        ("device", 75, False),
    ],
)  # fmt: skip
def test_rows_lie_on_the_gpu_where_they_fit(gpu, where, gigabytes, pinned) -> None:
    cfg = tiny("dqn", "CartPole-v1", f"run.replay_on={where}")
    plan = registry.make(cfg.algo).plan
    assert place_replay(cfg, plan, gigabytes * GB, CUDA) is pinned
    assert gpu.asked == ([(gigabytes * GB, None)] if pinned else []), "the host, if it is the host"


def test_what_is_told_to_be_on_the_gpu_and_does_not_fit_is_refused(gpu) -> None:
    cfg = tiny("dqn", "CartPole-v1", "run.replay_on=device")
    with pytest.raises(LudusError, match="E310") as caught:
        place_replay(cfg, registry.make(cfg.algo).plan, 80 * GB, CUDA)
    assert "run.replay_on=auto" in caught.value.fix


@pytest.mark.parametrize("plan", [Plan(Unroll(4), Uniform(), 4, capacity=100),
                                  Plan(Episode(1), Fifo(), capacity=100)])  # fmt: skip
def test_only_transitions_and_sequences_can_lie_elsewhere(gpu, plan) -> None:
    cfg = tiny("dqn", "CartPole-v1")
    assert place_replay(cfg, plan, 8 * GB, CUDA) is False
    with pytest.raises(LudusError, match="E310"):
        place_replay(cfg, plan, 80 * GB, CUDA)


def test_on_a_cpu_and_for_queues_the_host_is_asked(gpu) -> None:
    cfg = tiny("dqn", "CartPole-v1", "run.replay_on=host")
    assert not place_replay(cfg, Plan(NStep(), Uniform(), 4, capacity=9), 5, torch.device("cpu"))
    assert not place_replay(cfg, Plan(Unroll(4), Fifo(), 4), 6, CUDA)
    assert gpu.asked == [(5, None), (6, None)]


def test_a_gpu_that_is_not_there_is_refused_before_anything_is_written(tmp_path, monkeypatch,
                                                                       capsys) -> None:  # fmt: skip
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    cfg, _, spec = parts("dqn", "CartPole-v1", "run.device=cuda")
    for ask in (lambda: device_of(cfg, spec), lambda: precheck(cfg)):
        with pytest.raises(LudusError) as caught:
            ask()
        assert caught.value.code == "E104" and "run.device=cpu" in caught.value.fix
    words = ["train", "dqn", "CartPole-v1", "run.device=cuda", "--runs-dir", str(tmp_path)]
    assert command(words) == 2 and not list(tmp_path.iterdir())
    assert "E104" in capsys.readouterr().err


@pytest.mark.parametrize(("times", "want"), [((2.0, 1.0), "bf16"), ((1.2, 1.0), "fp32")])
def test_bf16_on_a_cpu_must_pay(monkeypatch, times, want) -> None:
    _, algorithm, spec = parts("dqn", PIXELS)
    seconds = iter(times)
    monkeypatch.setattr(compute, "_forward_seconds", lambda *_: next(seconds))
    precision, why = measured_precision(algorithm, spec)
    assert precision == want and f"{times[0]:.2f}x" in why


def test_the_measurement_runs_and_draws_nothing_from_the_global_generator() -> None:
    _, algorithm, spec = parts("ppo", PIXELS)
    before = torch.get_rng_state()
    assert measured_precision(algorithm, spec)[0] in ("fp32", "bf16")
    assert torch.equal(before, torch.get_rng_state())


def test_what_was_decided_is_not_measured_again(monkeypatch) -> None:
    cfg, algorithm, spec = parts("dqn", PIXELS)
    monkeypatch.setattr(compute, "measured_precision", lambda *_: ("bf16", "just measured"))
    assert decide(cfg, algorithm, spec).precision == "bf16"
    before = {"device": "cpu", "precision": "fp32", "why_precision": "measured long ago"}
    again = decide(cfg, algorithm, spec, before)
    assert (again.precision, again.why_precision) == ("fp32", "measured long ago")
    elsewhere = decide(cfg, algorithm, spec, before | {"device": "cuda"})
    assert elsewhere.precision == "bf16", "another machine decides for itself"
    told, _, _ = parts("dqn", PIXELS, "run.precision=bf16")
    assert decide(told, algorithm, spec, before).precision == "bf16", "what is typed wins"


def test_a_resumed_run_keeps_its_precision(tmp_path, monkeypatch) -> None:
    cfg = tiny("dqn", PIXELS, "steps=100", "run.device=cpu")
    monkeypatch.setattr(compute, "measured_precision", lambda *_: ("bf16", "it paid"))
    path = run(cfg, tmp_path).path
    assert load(path).state["compute"]["precision"] == "bf16"
    monkeypatch.setattr(compute, "measured_precision", lambda *_: ("fp32", "it does not"))
    longer = tiny("dqn", PIXELS, "steps=140", "horizon=100", "run.device=cpu")
    train_run(longer, registry.make(longer.algo), path=path, resume=True, quiet=True)
    assert read_status(RunDir(path))["compute"]["precision"] == "bf16"


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
    told = Compute(torch.device(device), "fp32", "off", overlap)
    assert not told.captured


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
    from ludus.run import updates

    real = updates.build_updates

    def fallen_back(store, learner, lanes, **_):
        made = real(store, learner, lanes, capture="off", overlap=False)
        made.mode = f"eager: {updates.why_not(store, learner)}"
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

    monkeypatch.setattr("ludus.run.recorder.unpack", full)
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
