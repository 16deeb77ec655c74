"""Recognise errors of exhausted GPU memory, and report them with sizes and a fix."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ludus.errors import LudusError
from ludus.settings.resolve import Config
from ludus.units import show_bytes

# Only torch's own allocator raises a type of its own. Libraries that allocate memory and a driver
# that cannot pin pages are recognised by their messages.
_MESSAGES = (
    "out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED",
    "HOST_ALLOCATION_FAILED", "cudaHostAlloc", "cudaHostRegister",
)  # fmt: skip
RESUME = (
    "resume from the newest checkpoint with  run.replay_on=host , which keeps rows in host memory; "
    "or start with a smaller algo.capacity, algo.batch or env.num and --init-from RUN"
)


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _MESSAGES)


def out_of_memory(cfg: Config, error: BaseException, *, fix: str = RESUME) -> LudusError:
    """E311: what filled the GPU and which option to change. The newest checkpoint is intact."""
    sizes = ""
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        mine = torch.cuda.memory_allocated()
        sizes = (
            f"this run holds {show_bytes(mine)}, {show_bytes(free)} of {show_bytes(total)} is free"
        )
    batch = getattr(cfg.algo, "batch", None) or getattr(cfg.algo, "rollout", None)
    if cfg.run.replay_on == "host":  # it did not help
        fix = "start with a smaller algo.capacity, algo.batch or env.num"
    return LudusError(
        "E311",
        f"the GPU is out of memory: {str(error).splitlines()[0]}",
        where=sizes,
        why=f"replay, batch ({batch}) and {cfg.env.num} environments do not fit together",
        fix=fix,
    )


@contextmanager
def explain_out_of_memory(cfg: Config, *, fix: str = RESUME) -> Iterator[None]:
    """Inside, running out of GPU memory raises E311."""
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            raise out_of_memory(cfg, error, fix=fix) from None
        raise
