"""Actors on Ray, on this machine or on the nodes of a cluster. Ray is an optional package."""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING

from ludus.errors import LudusError, install_extra

if TYPE_CHECKING:
    from ludus.fleets.ray.fleet import RayFleet

OLDEST = (2, 55)  # token authentication came with 2.52, its fixes with 2.55


def load_fleet() -> type[RayFleet]:
    """Import the fleet; raise if Ray is missing or too old."""
    try:
        version = metadata.version("ray")
    except metadata.PackageNotFoundError:
        raise _unusable("is not installed") from None
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        raise _unusable(f"{version} is older than {'.'.join(map(str, OLDEST))}")
    from ludus.fleets.ray.fleet import RayFleet

    return RayFleet


def _unusable(what: str) -> LudusError:
    return LudusError(
        "E501",
        f"run.fleet=ray: the package ray {what}",
        where="run.fleet",
        fix=f"{install_extra('ray')}, or on one machine  run.fleet=processes",
    )
