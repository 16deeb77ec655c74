"""Environments behind one adapter. The rest of Ludus sees EnvConfig, make_envs and EnvStep.

Names are imported at first use, so that looking up a game does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ludus.envs.adapter import Envs as Envs
    from ludus.envs.adapter import EnvStep as EnvStep
    from ludus.envs.config import EnvConfig as EnvConfig
    from ludus.envs.config import NormalizeConfig as NormalizeConfig
    from ludus.envs.config import WrapperConfig as WrapperConfig
    from ludus.envs.ids import resolve_id as resolve_id
    from ludus.envs.make import known_ids as known_ids
    from ludus.envs.make import make_envs as make_envs
    from ludus.envs.make import make_one as make_one
    from ludus.envs.make import probe_spec as probe_spec

# Settings of how environments are executed, not of what is played.
EXECUTION_SETTINGS = ("workers", "groups", "threads", "timeout", "on_error", "render", "native")

_HOME = {
    "EnvConfig": "config",
    "EnvStep": "adapter",
    "Envs": "adapter",
    "NormalizeConfig": "config",
    "WrapperConfig": "config",
    "known_ids": "make",
    "make_envs": "make",
    "make_one": "make",
    "probe_spec": "make",
    "resolve_id": "ids",
}

__all__ = ["EXECUTION_SETTINGS", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'ludus.envs' has no attribute {name!r}")
    return getattr(importlib.import_module(f"ludus.envs.{_HOME[name]}"), name)
