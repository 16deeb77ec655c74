"""deploy/kuberay-rayjob.yaml: the shape of its objects, the token, and few rights."""

from __future__ import annotations

import copy

import jsonschema
import pytest

from tests.deploy.files import documents, locked, schema


@pytest.fixture(scope="module")
def objects():
    return {found["kind"]: found for found in documents("kuberay-rayjob.yaml")}


def errors(found):
    return [
        e.message for e in jsonschema.Draft202012Validator(schema("kubernetes")).iter_errors(found)
    ]


def pods(objects):
    spec = objects["RayJob"]["spec"]
    cluster = spec["rayClusterSpec"]
    yield spec["submitterPodTemplate"]
    yield cluster["headGroupSpec"]["template"]
    for group in cluster["workerGroupSpecs"]:
        yield group["template"]


def test_every_object_has_the_shape_of_its_kind(objects):
    assert set(objects) == {"PersistentVolumeClaim", "NetworkPolicy", "RayJob"}
    for found in objects.values():
        assert not errors(found)


@pytest.mark.parametrize(
    "where",
    [
        ("spec", "rayClusterSpec", "authOptions"),
        ("spec", "rayClusterSpec", "headGroupSpec", "template", "spec", "containers", 0),
        ("spec", "rayClusterSpec", "workerGroupSpecs", 0),
    ],
)
def test_a_misspelt_field_is_found(objects, where):
    broken = copy.deepcopy(objects["RayJob"])
    inner = broken
    for word in where:
        inner = inner[word]
    inner["mod"] = inner.pop(next(iter(inner)))
    assert errors(broken)


def test_the_cluster_asks_for_a_token_that_stands_nowhere(objects):
    cluster = objects["RayJob"]["spec"]["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"}
    assert "RAY_AUTH_TOKEN" not in str(objects)


def test_pods_have_few_rights(objects):
    for pod in pods(objects):
        assert pod["metadata"]["labels"] == {"app": "ludus"}  # the network policy closes them
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        for container in pod["spec"]["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["limits"]["memory"]


def test_names_of_volumes_and_numbers_of_actors_agree(objects):
    for pod in pods(objects):
        known = {volume["name"] for volume in pod["spec"].get("volumes", [])}
        for container in pod["spec"]["containers"]:
            assert {mount["name"] for mount in container.get("volumeMounts", [])} <= known
    cluster = objects["RayJob"]["spec"]["rayClusterSpec"]
    (group,) = cluster["workerGroupSpecs"]
    head = cluster["headGroupSpec"]["template"]["spec"]["containers"][0]
    values = {variable["name"]: variable.get("value") for variable in head["env"]}
    actors = group["replicas"] * int(group["rayStartParams"]["num-cpus"])
    assert values["DEPLOY_HEAD"] == "$(POD_IP):6379"  # the address under which Ray knows the head
    assert int(values["DEPLOY_ALL_ACTORS"]) == actors
    assert cluster["rayVersion"] == locked("requirements.lock")["ray"]
