"""deploy/ray-cluster.yaml: the keys of Ray's launcher, and a token that travels over SSH only."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import jsonschema
import pytest

from tests.deploy.files import documents, schema


@pytest.fixture(scope="module")
def cluster():
    return documents("ray-cluster.yaml")[0]


def test_it_follows_the_schema(cluster):
    jsonschema.validate(cluster, schema("ray-cluster"))


def test_it_follows_the_schema_of_the_installed_ray(cluster):
    spec = find_spec("ray")
    if spec is None or spec.origin is None:  # an extra; the test above has the parts in use
        return
    own = Path(spec.origin).parent / "autoscaler" / "ray-schema.json"
    jsonschema.validate(cluster, json.loads(own.read_text(encoding="utf-8")))


def test_a_broken_copy_does_not(cluster):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**cluster, "head_start_comands": []}, schema("ray-cluster"))


def test_ray_of_both_kinds_of_nodes_is_started_by_the_script_of_roles(cluster):
    assert "ludus-role head" in cluster["head_start_ray_commands"][-1]
    assert "ludus-role actor" in cluster["worker_start_ray_commands"][-1]
    # Ray's launcher opens SSH to every address when it creates machines on AWS.
    assert cluster["provider"]["type"] == "local"


def test_the_token_is_copied_and_closed_before_anything_starts(cluster):
    assert cluster["file_mounts"]["~/.ludus/ray-token"] == "~/.ludus/ray-token"
    assert "chmod 600 ~/.ludus/ray-token" in cluster["setup_commands"][0]
