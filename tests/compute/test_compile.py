"""run.compile: what was compiled is said, and a compiler that fails is no reason to stop."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ludus import registry
from ludus.cli.main import run as command
from ludus.compute.compile import Compiled
from ludus.learn.placement import Compute, tune
from ludus.nets.torsos import CNNTorso, Impala, ImpalaTorso
from ludus.run import build
from ludus.run.build import build_loop
from ludus.track.run_dir.rundir import RunDir
from tests.contract.tiny import tiny
from tests.learn.test_captured_values import pictures
from tests.skips import needs_compiler, needs_gpu

CUDA = torch.device("cuda")
PIXELS = "ludus/IdentityPixels-v0"


class NoCompilerError(RuntimeError):
    """As torch raises where there is no C compiler, or where a compiler has a bug."""


@pytest.fixture
def broken(monkeypatch):
    """A machine on which nothing can be compiled."""

    def fails(graph, inputs):
        raise NoCompilerError("Failed to find C compiler.\nPlease specify one")

    real = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self, **_: real(self, backend=fails))


def torso() -> ImpalaTorso:
    torch.manual_seed(1)
    return ImpalaTorso((2, 16, 16), Impala(hidden=8))


def tuned(net: nn.ModuleDict, compiled: Compiled) -> None:
    tune(net, Compute(CUDA, "fp32", "auto", overlap=False, compiled=compiled))


def test_a_compiler_that_fails_leaves_the_torsos_as_they_are_written(broken) -> None:
    compiled = Compiled()
    net = nn.ModuleDict({"online": torso(), "target": torso()})
    tuned(net, compiled)
    assert compiled.mode == "2 torsos"
    images = torch.rand(3, 2, 16, 16)
    got = net["online"](images)
    assert torch.equal(got, torso()(images))
    assert compiled.mode.startswith("not: ") and "C compiler" in compiled.mode
    assert "\n" not in compiled.mode
    assert all(m._compiled_call_impl is None for m in net.modules())
    got.sum().backward()
    late = copy.deepcopy(net)
    tuned(late, compiled)  # the fleet's copy, made later
    assert all(m._compiled_call_impl is None for m in late.modules())


def test_what_is_wrong_with_a_torso_keeps_its_own_error(broken) -> None:
    compiled = Compiled()
    net = nn.ModuleDict({"online": torso()})
    tuned(net, compiled)
    with pytest.raises(RuntimeError, match="expected input"):
        net["online"](torch.rand(3, 5, 16, 16))


def test_a_full_gpu_is_not_a_compilers_fault(monkeypatch) -> None:
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    def compiled_to(self, **_):
        self._compiled_call_impl = full

    monkeypatch.setattr(nn.Module, "compile", compiled_to)
    compiled, net = Compiled(), nn.ModuleDict({"online": torso()})
    tuned(net, compiled)
    with pytest.raises(torch.OutOfMemoryError):
        net["online"](torch.rand(3, 2, 16, 16))
    assert compiled.mode == "1 torso"


def test_nothing_to_compile_is_said() -> None:
    compiled = Compiled()
    tuned(nn.ModuleDict({"online": nn.Linear(2, 2)}), compiled)
    assert compiled.mode == "not: no residual torso" and not CNNTorso.order.gpu


@pytest.mark.parametrize("settings", [(), ("run.compile=true",)])
def test_on_a_cpu_the_status_says_that_nothing_is_compiled(tmp_path, capsys, settings) -> None:
    words = ["train", "dqn", "CartPole-v1", "steps=100", "warmup=40", "tensorboard=off", *settings]
    assert command([*words, "--runs-dir", str(tmp_path), "--run", "x"]) == 0
    said = capsys.readouterr().out
    assert ("compile not: on a CPU" in said) is bool(settings)
    assert command(["status", str(tmp_path / "x")]) == 0
    line = next(x for x in capsys.readouterr().out.splitlines() if x.startswith("compute"))
    assert ("compile not: on a CPU" in line) is bool(settings) and "replay host" in line


def test_a_compiler_that_fails_while_running_is_said(tmp_path, monkeypatch, broken) -> None:
    """The torsos of a CPU run, compiled as those of a GPU run would be."""

    def as_on_a_gpu(net, compute):
        compute.compiled.take([m for m in net.modules() if isinstance(m, ImpalaTorso)])

    monkeypatch.setattr(build, "tune", as_on_a_gpu)
    small = ("algo.torso={kind: impala, hidden: 8}", "run.precision=fp32", "run.device=cpu")
    cfg = tiny("dqn", PIXELS, "run.compile=true", *small, "run.overlap=on")
    loop, _ = build_loop(cfg, registry.make(cfg.algo), RunDir(tmp_path))
    said = []
    loop.hooks.changed = lambda part, mode: said.append((part, mode))
    try:
        loop.barrier(0)
        assert loop.compute_info["compile"] == "2 torsos"
        while loop.learner.updates < 3:
            loop.iterate()
            loop.run_periodic()
    finally:
        loop.close()
    ((part, mode),) = said
    assert part == "compile" and mode.startswith("not: ") and "C compiler" in mode
    assert loop.compute_info["compile"] == mode


@needs_gpu
@needs_compiler
def test_a_compiled_and_captured_torso_learns_what_a_plain_one_learns(tmp_path):
    more = {"algo.torso": {"kind": "impala"}, "run.precision": "fp32", "algo.warmup": 300}
    loops = [
        pictures(tmp_path, "double-dqn", "cuda", **more, **{"run.compile": compiled})
        for compiled in (False, True)
    ]
    for loop in loops:
        while loop.learner.updates < 5:
            loop.iterate()
    assert loops[1].compiled.mode == "2 torsos", "the learner's and its target"
    assert loops[1].compute_info["updates"] == "captured"
    with torch.no_grad():
        a, b = (torch.cat([p.flatten() for p in x.learner.net.parameters()]) for x in loops)
        assert float((a - b).norm() / b.norm()) < 1e-3
    for loop in loops:
        loop.close()
