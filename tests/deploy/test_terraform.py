"""deploy/aws/terraform, parsed: nothing open, nothing left behind, nothing secret.

`terraform validate` and `terraform test` look at the same files in test_programs.py.
"""

from __future__ import annotations

import re

import pytest

from tests.deploy.files import AWS, parsed, resources

FOLDER = AWS / "terraform"
SOURCE = "".join(path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.tf")))


@pytest.fixture(scope="module")
def blocks():
    return parsed(FOLDER)


@pytest.fixture(scope="module")
def found(blocks):
    return resources(blocks)


@pytest.fixture(scope="module")
def variables(blocks):
    return {name: body for block in blocks["variable"] for name, body in block.items()}


def test_all_that_is_referred_to_exists_and_all_variables_are_used(blocks, found, variables):
    data = resources(blocks, "data")
    assert set(re.findall(r"\bvar\.(\w+)", SOURCE)) == set(variables)
    referred = set(re.findall(r"(?<![.\w])(aws_\w+\.\w+)\b(?!\s*=)", SOURCE))
    assert referred and {name for name in referred if f"data.{name}" not in SOURCE} <= set(found)
    assert set(re.findall(r"\bdata\.(aws_\w+\.\w+)", SOURCE)) == set(data)
    known = {name for block in blocks["locals"] for name in block}
    assert set(re.findall(r"\blocal\.(\w+)", SOURCE)) == known


def test_nothing_comes_in_but_ssh_from_the_named_addresses(found):
    rules = {k: v for k, v in found.items() if k.startswith("aws_vpc_security_group_ingress")}
    assert set(rules) == {
        "aws_vpc_security_group_ingress_rule.ray",
        "aws_vpc_security_group_ingress_rule.ssh",
    }
    ssh, ray = (rules[f"aws_vpc_security_group_ingress_rule.{x}"] for x in ("ssh", "ray"))
    assert ssh["cidr_ipv4"] == "${var.ssh_cidr}" and ssh["from_port"] == ssh["to_port"] == 22
    assert "cidr_ipv4" not in ray and "cidr_ipv6" not in ray
    assert ray["referenced_security_group_id"] == ray["security_group_id"]
    for body in found.values():
        assert "ingress" not in body, "rules stand in resources of their own"
    assert found["aws_default_security_group.none"].keys() == {"vpc_id"}


def test_the_whole_world_is_named_only_for_the_way_out(found):
    named = {name for name, body in found.items() if "0.0.0.0/0" in str(body)}
    assert named == {"aws_route_table.out", "aws_vpc_security_group_egress_rule.web"}
    assert "::/0" not in SOURCE


def test_who_may_connect_has_no_default_and_refuses_everybody(variables):
    assert "default" not in variables["ssh_cidr"]
    (rule,) = variables["ssh_cidr"]["validation"]
    assert "cidrnetmask" in rule["condition"] and ">= 16" in rule["condition"]
    # TensorBoard has no rule: it listens on the loopback address, behind SSH.
    tunnel = (FOLDER / "outputs.tf").read_text(encoding="utf-8")
    assert "ssh -N -L 6006:127.0.0.1:6006" in tunnel and "6006" not in SOURCE.replace(tunnel, "")


def test_machines_need_a_session_for_metadata_and_take_their_disk_along(found):
    machine = found["aws_instance.node"]
    (metadata,), (disk,) = machine["metadata_options"], machine["root_block_device"]
    assert metadata["http_tokens"] == "required" and metadata["http_put_response_hop_limit"] == 1
    assert disk["encrypted"] is True and disk["delete_on_termination"] is True
    assert machine["instance_initiated_shutdown_behavior"] == "terminate"


def test_destroy_leaves_nothing(found):
    assert found["aws_s3_bucket.runs"]["force_destroy"] is True
    assert found["aws_secretsmanager_secret.token"]["recovery_window_in_days"] == 0
    # Such resources stay, or keep their last copy, when they are destroyed.
    lasting = ("aws_ebs_volume", "aws_ami", "aws_kms_key", "aws_eip", "aws_db", "aws_ebs_snapshot")
    assert not [name for name in found if name.startswith(lasting)]
    assert "prevent_destroy" not in SOURCE and "skip_destroy" not in SOURCE


def test_the_token_is_in_no_file_no_user_data_and_no_state(found):
    # A secret's version, or a value read from it, would be kept in the state.
    assert not [name for name in found if name.startswith(("aws_secretsmanager_secret_version",))]
    assert not re.search(
        r"random_password|tls_private_key|aws_secretsmanager_secret_version", SOURCE
    )
    template = (FOLDER / "user-data.yaml.tftpl").read_text(encoding="utf-8")
    assert "RAY_AUTH_TOKEN" not in template + SOURCE
    assert not re.search(r"access_key|secret_key", SOURCE)


def test_rights_are_named_one_by_one(found, blocks):
    rights = next(block["rights"] for block in blocks["locals"] if "rights" in block)
    assert set(rights) == {"learner", "node", "evaluator"}
    for role, entries in rights.items():
        for entry in entries:
            assert all(re.fullmatch(r"[a-z0-9]+:[A-Z]\w+", word) for word in entry["actions"])
            assert "*" not in entry["resources"]
        writes = "secretsmanager:PutSecretValue" in str(entries)
        assert writes == (role == "learner"), "only the head writes the token"
    assert "secretsmanager" not in str(rights["evaluator"])


def test_the_ports_between_nodes_are_those_that_the_roles_use(found):
    script = (AWS.parent / "role.sh").read_text(encoding="utf-8")
    used = {int(port) for port in re.findall(r"-port=(\d+)", script)} | {6379}
    each = found["aws_vpc_security_group_ingress_rule.ray"]["for_each"]
    spans = each.values() if isinstance(each, dict) else re.findall(r"(\d+), (\d+)", each)
    spans = [(int(low), int(high)) for low, high in spans]
    assert all(any(low <= port <= high for low, high in spans) for port in used)


def test_the_example_sets_what_has_no_default_and_nothing_unknown(variables):
    example = (FOLDER / "terraform.tfvars.example").read_text(encoding="utf-8")
    named = set(re.findall(r"^(?:# )?(\w+) += ", example, re.MULTILINE))
    roles = {"learner", "actor", "replay", "evaluator"}
    assert named - roles <= set(variables)
    needed = {name for name, body in variables.items() if "default" not in body}
    assert needed <= set(re.findall(r"^(\w+) += ", example, re.MULTILINE))
