"""deploy/compose.yaml: valid, closed but for TensorBoard on the loopback address, no root."""

from __future__ import annotations

import json
from importlib.resources import files

import jsonschema
import pytest

from tests.deploy.files import documents

ROLES = {"token", "head", "learner", "actor", "replay", "evaluator", "tensorboard"}


@pytest.fixture(scope="module")
def compose():
    return documents("compose.yaml")[0]


@pytest.fixture(scope="module")
def check():
    """A validator of the schema of the Compose specification, without a network."""
    folder = files("check_jsonschema") / "builtin_schemas" / "vendor"
    schema = json.loads((folder / "compose-spec.json").read_text(encoding="utf-8"))
    return jsonschema.validators.validator_for(schema)(schema)


@pytest.mark.parametrize("name", ["compose.yaml", "compose.cuda.yaml"])
def test_it_follows_the_schema(check, name):
    assert not [error.message for error in check.iter_errors(documents(name)[0])]


def test_a_broken_copy_does_not(check, compose):
    services = {**compose["services"], "head": {"comand": ["head"]}}
    assert [*check.iter_errors({**compose, "services": services})]


def test_every_role_has_a_service_that_plays_it(compose):
    assert set(compose["services"]) == ROLES
    for name, service in compose["services"].items():
        assert service["command"] == [name]
        assert service["environment"]["DEPLOY_ROLE"] == name if name != "token" else True


def test_only_tensorboard_has_a_port_and_it_is_on_the_loopback_address(compose):
    ports = {name: s["ports"] for name, s in compose["services"].items() if "ports" in s}
    assert list(ports) == ["tensorboard"]
    assert all(str(port).startswith("127.0.0.1:") for port in ports["tensorboard"])


def test_ray_is_on_a_network_without_a_way_in_or_out(compose):
    assert compose["networks"]["cluster"]["internal"] is True
    for name in ("head", "learner", "actor", "replay"):
        assert compose["services"][name]["networks"] == ["cluster"]
        assert "ludus/.ludus:ro" in str(compose["services"][name]["volumes"])  # the token
        assert compose["services"][name]["depends_on"]["token"]
    for name in ("evaluator", "token"):
        assert compose["services"][name]["network_mode"] == "none"


def test_services_have_few_rights_and_enough_shared_memory(compose):
    for name, service in compose["services"].items():
        assert service["cap_drop"] == ["ALL"] and service["read_only"] is True
        assert "no-new-privileges:true" in service["security_opt"]
        assert not {"privileged", "user", "pid", "ipc"} & set(service)
        if name in ("head", "learner", "actor", "replay"):  # Docker's 64 MB are too few for Ray
            assert "gb" in service["shm_size"]
