"""deploy/aws/packer: a template for each role, made by one script; packer itself looks at them in
test_programs.py."""

from __future__ import annotations

import pytest

from tests.deploy.files import AWS, CHECKS, parsed, resources

FOLDER = AWS / "packer"


@pytest.fixture(scope="module")
def blocks():
    return parsed(FOLDER)


def test_every_role_has_a_template_of_its_own():
    names = {path.name.removesuffix(".pkr.hcl") for path in FOLDER.glob("*.pkr.hcl")}
    assert names == {*CHECKS.ROLES, "common", "plugins"}


@pytest.mark.parametrize("role", CHECKS.ROLES)
def test_an_image_is_encrypted_closed_while_it_is_built_and_names_its_role(blocks, role):
    image = resources(blocks, "source")[f"amazon-ebs.{role}"]
    assert image["encrypt_boot"] is True
    assert image["temporary_security_group_source_cidrs"] == "${var.build_cidrs}"
    assert all(disk["delete_on_termination"] for disk in image["launch_block_device_mappings"])
    assert image["tags"]["Role"] == role
    (build,) = [build for build in blocks["build"] if build["name"] == role]
    assert build["sources"] == [f"source.amazon-ebs.{role}"]
    shell = next(p["shell"] for p in build["provisioner"] if "shell" in p)
    assert "${local.install}" in str(shell["inline"]) and "${local.clean}" in str(shell["inline"])


def test_who_builds_names_their_addresses(blocks):
    variables = {name: body for block in blocks["variable"] for name, body in block.items()}
    assert "default" not in variables["build_cidrs"]


def test_only_the_file_of_plugins_needs_a_newer_packer():
    for path in FOLDER.glob("*.pkr.hcl"):
        assert ("required_plugins" in path.read_text("utf-8")) == (path.name == "plugins.pkr.hcl")
