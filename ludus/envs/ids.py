"""Resolves environment ids: one name per game, removed versions, module:Class.

Whether a file may name a module is decided in ludus/settings/trust.py, before it is imported.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import gymnasium as gym

from ludus.envs.atari.names import canonical
from ludus.envs.test_envs import PROBES
from ludus.errors import LudusError, nearest
from ludus.process.modules import import_named, of_python

_VERSION = re.compile(r"^(?P<name>.+)-v(?P<version>\d+)$")


def resolve_id(id: str) -> str:
    """The canonical id, with the newest version if the requested one is gone."""
    id = canonical(id)
    hit = _VERSION.match(id)
    if id in PROBES or ":" in id or hit is None:
        return id
    pattern = re.compile(re.escape(hit["name"]) + r"-v(\d+)$")
    versions = [int(m[1]) for m in map(pattern.match, gym.registry) if m]
    asked = int(hit["version"])
    newer = [v for v in versions if v > asked]
    return f"{hit['name']}-v{max(newer)}" if newer and asked not in versions else id


def version_notes(id: str) -> tuple[str, ...]:
    """A line for the user if an id resolves to another version."""
    made = resolve_id(id)
    if made == canonical(id):
        return ()
    return (f"{id} is no longer registered: {made} is trained instead",)


def find_maker(id: str) -> Callable[..., Any] | None:
    """The class or function to call; None if the module registers the id with gymnasium. Refuses
    anything else, because it would be called with arguments from the settings."""
    module_name, _, attribute = id.partition(":")
    if of_python(module_name):
        raise _no_environment(id)
    module = _import(module_name, id)
    found: Any = getattr(module, attribute, None)
    if found is None and attribute in gym.registry:
        return None
    if found is None:
        names = [n for n, v in vars(module).items() if callable(v)]
        raise LudusError(
            "E201",
            f"{module_name} has no  {attribute}{nearest(attribute, names)}",
            why=f"the module that was found is {getattr(module, '__file__', None)}",
            fix=f"name a class or function of it, as in  {module_name}:MyEnv",
        )
    if not (isinstance(found, type) and issubclass(found, gym.Env)) and not _of(module, found):
        raise _no_environment(id)
    maker: Callable[..., Any] = found
    return maker


def _import(name: str, id: str) -> ModuleType:
    try:
        return import_named(name)
    except ImportError as error:
        raise LudusError(
            "E201",
            f"cannot import {name} of environment  {id}",
            why=str(error),
            fix="check the spelling; cd to the folder that holds it, or  PYTHONPATH=FOLDER ludus "
            "...",
        ) from error


def _of(module: ModuleType, found: Any) -> bool:
    """Whether `found` is a function of the module's own package, not an imported one."""
    if not isinstance(found, FunctionType):
        return False
    return found.__module__.partition(".")[0] == module.__name__.partition(".")[0]


def _no_environment(id: str) -> LudusError:
    return LudusError(
        "E201",
        f"{id} is not a gymnasium.Env, and is not called",
        why="only a class derived from gymnasium.Env, or a function of the same package that "
        "returns one, makes an environment",
        fix="derive the class from gymnasium.Env",
    )
