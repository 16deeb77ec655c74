"""MuJoCo: whether it can be used, and its warnings kept out of terminals and folders."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module, metadata
from typing import Any

import gymnasium as gym

from ludus.errors import LudusError, install_extra

TOO_NEW = 4  # the first version whose trajectories differ
WHY_NOT = "version 4 changes trajectories: scores of agents and papers would not compare"
FIX = 'pip install "mujoco<4"'
_HOME = "gymnasium.envs.mujoco"


def installed() -> str | None:
    """The version of MuJoCo; None if there is none."""
    try:
        return metadata.version("mujoco")
    except metadata.PackageNotFoundError:
        return None


def too_new(version: str) -> bool:
    major = version.partition(".")[0]
    return major.isdecimal() and int(major) >= TOO_NEW


def registered(id: str) -> bool:
    """Whether an id of the registry is one of gymnasium's MuJoCo environments."""
    entry = gym.registry[id].entry_point if id in gym.registry else None
    return isinstance(entry, str) and entry.startswith(_HOME)


def derived(maker: Any) -> bool:
    """Whether a class is derived from gymnasium's MuJoCo environment."""
    module = sys.modules.get(f"{_HOME}.mujoco_env")  # imported by whoever derives from it
    return module is not None and isinstance(maker, type) and issubclass(maker, module.MujocoEnv)


def need_mujoco(id: str) -> None:
    """Refuse an environment whose simulator is missing or of another version."""
    version = installed()
    if version is None:
        raise LudusError(
            "E501",
            f"environment {id} needs mujoco, which is not installed",
            why="MuJoCo is an extra",
            fix=install_extra("mujoco"),
        )
    if too_new(version):
        raise LudusError(
            "E501",
            f"environment {id} needs mujoco before version {TOO_NEW}, not {version}",
            where=f"mujoco {version} in {sys.prefix}",
            why=WHY_NOT,
            fix=FIX,
        )
    quiet_simulator()


def quiet_simulator() -> None:
    """Without a handler MuJoCo prints its warnings and adds them to MUJOCO_LOG.TXT here."""
    mujoco = import_module("mujoco")
    if mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(_warn)


def _warn(text: str) -> None:
    if "deprecated" not in text:  # models of gymnasium's own, which users cannot change
        warnings.warn(f"MuJoCo: {text}", RuntimeWarning, stacklevel=2)
