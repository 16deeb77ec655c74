"""The share of time in which a GPU ran no kernel, as its driver (NVML) counts it.

No package is needed: NVML is the library behind nvidia-smi. It counts the kernels of every process
on the GPU, so that of actors is included, and that of strangers, too.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

import torch

PERIOD = 0.25  # seconds between samples; the driver averages over about as long
Busy = Callable[[], float]  # the share of the last moment in which a kernel ran


class UnavailableError(Exception):
    """Why the utilisation cannot be read."""


class GpuUsage:
    """Averages samples over a session, in a thread that sleeps nearly always."""

    def __init__(self, busy: Busy | None, why: str = "") -> None:
        self.why = why  # it is not available
        self._busy = busy
        self._sum, self._count = 0.0, 0
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu-usage", daemon=True)
        if busy is not None:
            self._thread.start()

    @property
    def idle(self) -> float | None:
        """The mean idle share so far; None: not available."""
        if not self._count:
            self._sample()
        with self._lock:
            return 1.0 - self._sum / self._count if self._count else None

    def close(self) -> None:
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(PERIOD) and self._busy is not None:
            self._sample()

    def _sample(self) -> None:
        busy = self._busy
        try:
            share = busy() if busy is not None else None
        except UnavailableError as error:
            self._busy, self.why, share = None, str(error), None
        if share is not None:
            with self._lock:
                self._sum += share
                self._count += 1


def watch_gpu(device: torch.device) -> GpuUsage | None:
    """Watch the GPU of a run's learner; None on a CPU. Never fails: it may be not available."""
    if device.type != "cuda":
        return None
    try:
        return GpuUsage(_nvml(device))
    except UnavailableError as error:
        return GpuUsage(None, str(error))


class _Utilization(ctypes.Structure):
    """nvmlUtilization_t: percentages."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


def _nvml(device: torch.device) -> Busy:
    """Return a function that reads the GPU's utilisation. GPUs are found by their UUID, because
    torch numbers only those that CUDA_VISIBLE_DEVICES leaves."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        raise UnavailableError("no libnvidia-ml.so.1") from None
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    _check(nvml.nvmlInit_v2())
    handle = ctypes.c_void_p()
    _check(nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode(), ctypes.byref(handle)))

    def busy() -> float:
        found = _Utilization()
        _check(nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(found)))
        return float(min(found.gpu, 100)) / 100

    busy()  # a GPU in MIG mode refuses
    return busy


def _check(code: int) -> None:
    if code:
        raise UnavailableError(f"NVML error {code}")
