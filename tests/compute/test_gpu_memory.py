"""Out of GPU memory has many names; each becomes the one error with sizes and a way out."""

from __future__ import annotations

import psutil
import pytest
import torch

from ludus.cli.main import run as command
from ludus.compute.cuda_graph import Graph
from ludus.compute.gpu_memory import is_out_of_memory, out_of_memory
from ludus.errors import LudusError
from ludus.replay.storage import pinned
from tests.contract.tiny import tiny
from tests.skips import needs_gpu

FULL = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1 GiB free."),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel errors might be reported late"),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("cudaHostAlloc of 7 GB failed"),
]
OTHER = [
    RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
    torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
    ValueError("out of memory, says somebody's environment"),
]


def name(error: Exception) -> str:
    return str(error)[:40]


@pytest.mark.parametrize("error", FULL, ids=name)
def test_every_name_of_a_full_gpu_is_known(error) -> None:
    assert is_out_of_memory(error)
    result = out_of_memory(tiny("dqn", "CartPole-v1"), error)
    assert result.code == "E311" and result.exit_code == 4
    assert str(error).splitlines()[0] in result.what and "\n" not in result.what


@pytest.mark.parametrize("error", OTHER, ids=name)
def test_other_errors_are_left_alone(error) -> None:
    assert not is_out_of_memory(error)


@pytest.mark.parametrize("error", FULL[1::2], ids=name)
def test_a_run_ends_with_it(tmp_path, monkeypatch, capsys, error) -> None:
    def full(*_, **__):
        raise error

    monkeypatch.setattr("ludus.learn.learner.Learner._gradients", full)
    words = ["train", "dqn", "CartPole-v1", "steps=200", "warmup=64", "batch=16", "tensorboard=off"]
    assert command([*words, "--quiet", "--runs-dir", str(tmp_path)]) == 4
    said = capsys.readouterr().err
    assert "E311" in said and str(error).splitlines()[0] in said and "batch (16)" in said


@pytest.mark.parametrize("error", FULL, ids=name)
def test_a_capture_that_finds_no_memory_is_no_reason_to_go_on_eagerly(error) -> None:
    calls: list[int] = []

    def fills() -> None:
        calls.append(1)
        if len(calls) > 1:
            raise error

    with pytest.raises(type(error)):
        Graph(fills, torch.device("cpu"), keeps=list, generators=[])


def test_no_advice_to_keep_rows_in_host_memory_where_they_are() -> None:
    cfg = tiny("dqn", "CartPole-v1", "run.replay_on=host")
    assert "run.replay_on=host" not in out_of_memory(cfg, FULL[0]).fix
    assert "run.replay_on=host" in out_of_memory(tiny("dqn", "CartPole-v1"), FULL[0]).fix


def test_rows_that_cannot_be_pinned_are_refused_with_their_size(monkeypatch) -> None:
    def full(*_, **__):
        raise torch.AcceleratorError("CUDA error: out of memory\nmore")

    monkeypatch.setattr(pinned, "_lock", full)
    with pytest.raises(LudusError) as caught:
        pinned.allocate_pinned((1000, 84, 84), torch.uint8, torch.device("cuda"))
    assert caught.value.code == "E310" and "7.06 MB" in caught.value.what
    assert "run.replay_on=device" in caught.value.fix and "algo.capacity" in caught.value.fix


@needs_gpu
def test_pinned_memory_is_what_was_asked_for_and_is_given_back() -> None:
    """torch's own would take 256 MB for 130."""
    here, device = psutil.Process(), torch.device("cuda")

    def used(shape: tuple[int, ...]) -> tuple[int, int]:
        before = here.memory_info().rss
        rows = pinned.allocate_pinned(shape, torch.uint8, device)
        taken = here.memory_info().rss - before
        assert int(rows.sum()) == 0
        rows[7] = 3
        assert int(rows.sum()) == 3 * rows[7].numel()
        del rows
        return taken, here.memory_info().rss - before

    used((10, 100, 100))  # loads the kernels, which are large
    taken, left = used((130, 1000, 1000))
    assert 125e6 < taken < 150e6 and left < 10e6
    assert pinned.allocate_pinned((0, 4), torch.float32, device).shape == (0, 4)
