"""Random streams of a run, all derived from one seed. Nothing uses a global generator."""

from __future__ import annotations

import zlib

import numpy as np
import torch


def stream_seed(seed: int, role: str, index: int = 0, barrier: int = 0) -> int:
    """Return a 63-bit seed for (role, index) after checkpoint barrier number `barrier`."""
    key = [seed, zlib.crc32(role.encode()), index, barrier]
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> np.uint64(1))


def env_seed(seed: int, role: str, env: int, barrier: int = 0) -> int:
    """Return a 31-bit seed, the range that `reset(seed=)` of every environment accepts."""
    return stream_seed(seed, role, env, barrier) % (2**31 - 1)


def generator(
    seed: int, role: str, index: int = 0, barrier: int = 0, device: str | torch.device = "cpu"
) -> torch.Generator:
    rng = torch.Generator(device=device)
    rng.manual_seed(stream_seed(seed, role, index, barrier))
    return rng
