"""Optimizer state as named tensors and JSON, so that it can be saved without pickle.

Works for any optimizer whose state_dict holds tensors, numbers and tuples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ludus.errors import LudusError


def optimizer_to_tensors(
    optimizer: torch.optim.Optimizer,
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return tensors named `<parameter index>/<key>` or `group<i>/<key>`, and the rest as JSON."""
    saved = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}

    def without_tensors(place: str, entry: Mapping[str, Any]) -> dict[str, Any]:
        found = {key: value for key, value in entry.items() if isinstance(value, Tensor)}
        tensors.update((f"{place}/{key}", value) for key, value in found.items())
        return {key: value for key, value in entry.items() if key not in found}

    scalars = {str(i): without_tensors(str(i), entry) for i, entry in saved["state"].items()}
    groups = [without_tensors(f"group{i}", g) for i, g in enumerate(saved["param_groups"])]
    return tensors, {"name": type(optimizer).__name__, "groups": groups, "scalars": scalars}


def optimizer_from_tensors(
    optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]
) -> None:
    """Load a saved state into an optimizer. Raise E306 if the parameters differ."""
    if meta.get("name") != type(optimizer).__name__:
        raise _misfit(f"it was saved by {meta.get('name')}, this is {type(optimizer).__name__}")
    state = {int(index): dict(plain) for index, plain in meta["scalars"].items()}
    own, saved = optimizer.state_dict()["param_groups"], meta["groups"]
    counts = [[len(group["params"]) for group in groups] for groups in (own, saved)]
    if counts[0] != counts[1]:
        raise _misfit(f"it has parameter groups of {counts[1]} tensors, not {counts[0]}")
    groups = [_group(*pair) for pair in zip(own, saved, strict=True)]
    for name, tensor in tensors.items():
        place, key = name.split("/", 1)
        if place.startswith("group"):
            groups[int(place.removeprefix("group"))][key] = tensor
        else:
            state.setdefault(int(place), {})[key] = tensor
    _check_shapes(optimizer, state)
    optimizer.load_state_dict({"state": state, "param_groups": groups})


# Options that select the implementation of a step; the current machine decides them.
_HOW = ("capturable", "fused", "foreach")


def _group(ours: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """Restore tuples, which JSON stores as lists: use the types of the optimizer's own group."""
    group = {k: tuple(v) if isinstance(ours.get(k), tuple) else v for k, v in saved.items()}
    return group | {k: ours[k] for k in _HOW if k in ours}


def _check_shapes(optimizer: torch.optim.Optimizer, state: Mapping[int, Mapping[str, Any]]) -> None:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for index, entry in state.items():
        if not 0 <= index < len(parameters):
            raise _misfit(f"it has a state for parameter {index} of {len(parameters)}")
        for key, value in entry.items():
            wrong = isinstance(value, Tensor) and value.dim() > 0
            if wrong and value.shape != parameters[index].shape:
                shapes = f"{tuple(value.shape)}, not {tuple(parameters[index].shape)}"
                raise _misfit(f"{key} of parameter {index} has shape {shapes}")


def _misfit(why: str) -> LudusError:
    return LudusError(
        "E306",
        "the saved optimizer state does not fit the network",
        why=why,
        fix="resume with the run's own configuration, or take only the weights with  --init-from",
    )
