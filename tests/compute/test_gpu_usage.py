"""The idle share of the learner's GPU: measured by the driver, reported by the run."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path

import pytest
import torch

from ludus.cli.main import run as command
from ludus.compute import gpu_usage
from ludus.compute.gpu_usage import GpuUsage, UnavailableError, watch_gpu
from ludus.run import build
from ludus.track.metrics.writer import read_metrics
from ludus.track.terminal import Snapshot, plain_lines
from tests.contract.tiny import run, tiny

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
GPU = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def no_samples_by_time(monkeypatch):
    """Tests take the samples: the thread waits longer than they last."""
    monkeypatch.setattr(gpu_usage, "PERIOD", 3600.0)


def watched_run(tmp_path, monkeypatch, usage):
    """A run that believes its CPU to be a GPU with this usage."""
    monkeypatch.setattr(build, "watch_gpu", lambda device: usage)
    cfg = tiny("dqn", "CartPole-v1", "steps=256", "log.every=64", "log.report=true")
    return run(cfg, tmp_path).path


def shown(path, capsys, *words):
    capsys.readouterr()
    assert command([*words, str(path)]) == 0
    return capsys.readouterr().out


def test_idle_is_what_is_left_of_the_mean_of_all_samples():
    shares = iter([0.25, 0.75, 0.8])
    usage = GpuUsage(lambda: next(shares))
    assert usage.idle == 0.75, "the first sample is taken when somebody asks"
    usage._sample()
    usage._sample()
    assert usage.idle == pytest.approx(0.4)
    usage.close()
    assert usage.idle == pytest.approx(0.4), "it can be read after the end"
    assert not usage._thread.is_alive()


def test_a_driver_that_fails_later_leaves_what_was_measured():
    shares = iter([0.25])

    def busy():
        for share in shares:
            return share
        raise UnavailableError("NVML error 15")

    usage = GpuUsage(busy)
    assert usage.idle == 0.75
    usage._sample()
    assert usage.idle == 0.75 and usage.why == "NVML error 15"
    usage.close()


class FakeNvml:
    """What is called of libnvidia-ml.so.1; `refuses` names the call that fails."""

    def __init__(self, refuses: str = "") -> None:
        self.refuses, self.asked = refuses, b""

    def nvmlInit_v2(self) -> int:  # noqa: N802
        return 3 if self.refuses == "init" else 0

    def nvmlDeviceGetHandleByUUID(self, uuid, handle) -> int:  # noqa: N802
        self.asked = uuid
        return 6 if self.refuses == "handle" else 0

    def nvmlDeviceGetUtilizationRates(self, handle, found) -> int:  # noqa: N802
        found._obj.gpu, found._obj.memory = 58, 99
        return 3 if self.refuses == "utilization" else 0


@pytest.fixture
def nvml(monkeypatch):
    def put(refuses: str = "") -> FakeNvml:
        library = FakeNvml(refuses)
        facts = type("Properties", (), {"uuid": "a6c51ab8-b431"})
        monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: facts)
        return library

    return put


def test_the_driver_is_asked_for_the_gpu_by_its_uuid(nvml):
    library = nvml()
    usage = watch_gpu(GPU)
    assert usage.idle == pytest.approx(0.42) and library.asked == b"GPU-a6c51ab8-b431"
    usage.close()


@pytest.mark.parametrize("refuses", ["init", "handle", "utilization"])
def test_a_driver_that_refuses_ends_no_run(nvml, refuses):
    nvml(refuses)
    usage = watch_gpu(GPU)
    assert usage.idle is None and usage.why.startswith("NVML error")
    usage.close()


def test_no_driver_at_all(monkeypatch):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    usage = watch_gpu(GPU)
    assert usage.idle is None and usage.why == "no libnvidia-ml.so.1"
    usage.close()


@pytest.mark.accept(91)
def test_a_run_reports_the_idle_share_everywhere(tmp_path, monkeypatch, capsys):
    usage = GpuUsage(lambda: 0.7)
    path = watched_run(tmp_path, monkeypatch, usage)
    lines = read_metrics(path / "metrics.jsonl")
    assert len(lines) >= 4
    assert [line["time/gpu_idle"] for line in lines] == pytest.approx([0.3] * len(lines))
    assert json.loads((path / "status.json").read_text())["gpu_idle"] == 0.3
    assert ["gpu_idle", "0.3"] in [
        line.split() for line in shown(path, capsys, "status").split("\n")
    ]
    page = (path / "report.html").read_text()
    assert 'data-unit="GPU idle">30%</td>' in page and ">GPU idle</th>" in page
    assert not usage._thread.is_alive(), "the run has ended it"


def test_the_screen_shows_it_with_the_times():
    split = {"env": 0.2, "act": 0.2, "learn": 0.5, "other": 0.1}
    line = plain_lines(Snapshot(1, 10, split=split, gpu_idle=0.3))[1]
    assert "other 10% · GPU idle 30% -> bottleneck: learner" in line


@pytest.mark.accept(91)
def test_a_share_that_cannot_be_read_is_said_to_be_not_available(tmp_path, monkeypatch, capsys):
    path = watched_run(tmp_path, monkeypatch, GpuUsage(None, "no libnvidia-ml.so.1"))
    lines = read_metrics(path / "metrics.jsonl")
    assert lines and all(line["time/gpu_idle"] is None for line in lines)
    assert "not available: no libnvidia-ml.so.1" in shown(path, capsys, "status")
    assert 'data-unit="GPU idle">not available</td>' in (path / "report.html").read_text()


def test_a_run_on_a_cpu_says_nothing_about_gpus(tmp_path, capsys):
    cfg = tiny("dqn", "CartPole-v1", "steps=128", "log.every=64", "log.report=true")
    path = run(cfg, tmp_path).path
    assert all("time/gpu_idle" not in line for line in read_metrics(path / "metrics.jsonl"))
    assert "gpu_idle" not in shown(path, capsys, "status")
    assert "GPU idle" not in (path / "report.html").read_text()


@pytest.mark.accept(91)
def test_one_gpu_makes_nineteen_updates_of_batch_512_a_second():
    """Measured on an H200 by benchmarks/atari_speed.py, on a replay of a million Atari frames."""
    rows = json.loads((RESULTS / "atari_speed.json").read_text())["learner"]
    (row,) = [row for row in rows if row["label"] == "like Ape-X"]
    assert row["settings"]["algo.batch"] == 512 and row["settings"]["algo.capacity"] == 1_000_000
    mode = row["modes"]["auto"]
    assert row["machine"]["gpu"] and mode["compute"]["device"] == "cuda"
    assert mode["learner_alone_updates_per_second"] >= 19
