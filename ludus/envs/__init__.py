"""Environments behind one adapter. The rest of Ludus sees EnvConfig, make_envs and EnvStep.

Names are fetched when first used: who only asks what a game is called need not wait for torch.
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

# Settings that say how an environment is driven, not what is played.
DRIVING = ("workers", "groups", "threads", "timeout", "on_error", "render", "native")

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

__all__ = ["DRIVING", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'ludus.envs' has no attribute {name!r}")
    return getattr(importlib.import_module(f"ludus.envs.{_HOME[name]}"), name)
