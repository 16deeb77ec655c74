"""Which environment an id means: one name per game, and versions that are gone."""

from __future__ import annotations

import re

import gymnasium as gym

from ludus.envs.atari.names import canonical
from ludus.envs.test_envs import PROBES

_VERSION = re.compile(r"^(?P<name>.+)-v(?P<version>\d+)$")


def resolve_id(id: str) -> str:
    """The id itself, or the newest version when the one asked for is gone; games by one name."""
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
    """One line for people where an id gets another version than it names."""
    made = resolve_id(id)
    if made == canonical(id):
        return ()
    return (f"{id} is no longer registered: {made} is trained instead",)
