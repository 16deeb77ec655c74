"""One Ray for all tests of this folder that run in one process: it takes some 10 s to start."""

from __future__ import annotations

from pathlib import Path

import pytest

from ludus.fleets.ray import cluster
from ludus.settings.sections import RayConfig


@pytest.fixture(scope="session")
def ray_here():
    """Ray with room for four actors, to which every fleet of this process connects."""
    started = cluster.start(RayConfig(), 4)
    yield
    started.close()


# Ray takes some 10 s to start and its processes share few cores, so one test of the fast set shows
# that it works, and the slow set has the rest.
QUICK = "test_lockstep_is_equal_bit_for_bit_on_every_fleet[dqn]"
STARTS_RAY = (
    "test_an_open_cluster_is_joined_only_if_insecure",
    "test_a_killed_learner_leaves_no_process_and_no_memory",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents and item.name != QUICK:
            if "ray_here" in item.fixturenames or item.name in STARTS_RAY:
                item.add_marker(pytest.mark.slow)
