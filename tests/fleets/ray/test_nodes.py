"""Actors on other nodes of a cluster: one is lost, and a new one takes its actor."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil
import pytest
import ray

from tests.fleets.ray.test_faults import iterate_until, watch_streams
from tests.fleets.ray.test_ray import free
from tests.started import kept

pytestmark = pytest.mark.usefixtures("ray_here")


# `ray start` starts no second node on the loopback address.
NODE = """
import sys, time
from ray._private.node import Node
from ray._private.parameter import RayParams
parameters = RayParams(
    gcs_address=sys.argv[1], node_ip_address="127.0.0.1", num_cpus=1, resources={sys.argv[2]: 1}
)
Node(parameters, head=False, spawn_reaper=False)
time.sleep(3600)
"""


def node(resource):
    """A further node on this machine, with a resource of its own. One starts after the other."""
    before = len(ray.nodes())
    address = ray.get_runtime_context().gcs_address
    started = subprocess.Popen(
        [sys.executable, "-c", NODE, address, resource],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    kept(started)
    while len(ray.nodes()) == before:  # the time limit of every test ends it
        assert started.poll() is None
        time.sleep(0.1)
    return started


def lose(started):
    """Kill a node with all processes on it, as a machine that loses its power."""
    for process in [*psutil.Process(started.pid).children(recursive=True), started]:
        process.kill()
    started.wait()


def test_a_lost_node_is_no_fault_of_its_actors_and_a_new_one_takes_them(tmp_path):
    nodes = [node("far"), node("far")]
    loop = free(tmp_path, **{"ray.resource": "far"})
    warnings = []
    loop.fleet.warn = warnings.append
    seen = watch_streams(loop)
    iterate_until(loop, lambda: all(m.worked for m in loop.fleet.members))
    places = {m.place.node for m in loop.fleet.members}
    assert len(places) == 2 and ray.get_runtime_context().get_node_id() not in places
    lose(nodes[0])
    before = list(loop.fleet.members)
    iterate_until(loop, lambda: loop.fleet.members != before)
    (index,) = [i for i in (0, 1) if loop.fleet.members[i] is not before[i]]
    assert warnings == [
        f"actor {index} is replaced: its node {before[index].place.node[:8]} is lost"
    ]
    count = len(seen)
    iterate_until(loop, lambda: len(seen) > count + 10)
    assert {source for source, _ in seen[count:]} <= {1 - index}, "the rest goes on"
    assert loop.fleet.metrics()["alive"] == 1 and loop.fleet.restarts.count == 0
    nodes.append(node("far"))
    fresh = loop.fleet.members[index]
    iterate_until(loop, lambda: fresh.worked)
    assert fresh.place.node not in places and fresh.job.generation == 1
    loop.close()
    for started in nodes[1:]:
        lose(started)
