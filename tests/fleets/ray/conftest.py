"""One Ray for all tests of this folder that run in one process: it takes some 10 s to start."""

from __future__ import annotations

import pytest

from ludus.fleets.ray import cluster
from ludus.settings.sections import RayConfig


@pytest.fixture(scope="session")
def ray_here():
    """Ray with room for four actors, to which every fleet of this process connects."""
    started = cluster.start(RayConfig(), 4)
    yield
    started.close()
