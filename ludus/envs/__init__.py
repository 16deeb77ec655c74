"""Environments behind one adapter. The rest of Ludus sees EnvConfig, make_envs and EnvStep."""

from ludus.envs.adapter import Envs, EnvStep
from ludus.envs.config import EnvConfig, NormalizeConfig, WrapperConfig
from ludus.envs.make import known_ids, make_envs, make_one, probe_spec, resolve_id

__all__ = [
    "EnvConfig",
    "EnvStep",
    "Envs",
    "NormalizeConfig",
    "WrapperConfig",
    "known_ids",
    "make_envs",
    "make_one",
    "probe_spec",
    "resolve_id",
]
