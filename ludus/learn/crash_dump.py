"""A refused update on disk: its batch and the weights before it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn

from ludus.track.atomic_files import make_folder
from ludus.types import tree_leaves, tree_paths

DUMPS = 10  # the newest refused updates that are kept


def write_dump(path: Path, net: nn.ModuleDict, batch: Any) -> Path | None:
    """Write the weights and the batch, if there is one; None where it cannot be written."""
    tensors = {f"net.{k}": v for k, v in net.state_dict().items()}
    for name, value in () if batch is None else zip(batch._fields, batch, strict=True):
        if value is not None:
            paths = tree_paths(value, f"batch.{name}")
            tensors |= dict(zip(paths, tree_leaves(value), strict=True))
    try:
        make_folder(path.parent)
        for old in sorted(path.parent.glob("nonfinite-*"))[: 1 - DUMPS]:
            old.unlink()
        path.unlink(missing_ok=True)  # it would be written through a link
        save_file({k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}, path)
    except (OSError, SafetensorError):
        return None  # a full disk must not end the run
    return path
