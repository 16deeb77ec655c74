"""The files of deploy/ through the programs that read them: tools/check_deploy.py."""

from __future__ import annotations

import shutil

import pytest

from tests.deploy.files import CHECKS, all_files
from tests.skips import skip_without

pytestmark = pytest.mark.slow


@pytest.fixture
def program():
    def need(name):
        skip_without(name, shutil.which(name))

    return need


@pytest.mark.parametrize("role", CHECKS.ROLES)
def test_packer_accepts_each_template_and_refuses_a_broken_copy(program, role):
    program("packer")
    good, said = CHECKS.packer_validate(role)
    assert good, said
    for old, new in (
        ("instance_type =", "instance_typ ="),
        ("var.build_cidrs", "var.nobody"),
        ('provisioner "shell"', 'provisioner "shel"'),
        (f'sources = ["source.amazon-ebs.{role}"]', 'sources = ["source.amazon-ebs.no"]'),
    ):
        good, said = CHECKS.packer_validate(role, lambda text, o=old, n=new: text.replace(o, n))
        assert not good, f"{old} -> {new}"


@pytest.mark.parametrize("install", [True, False])
def test_cloud_init_accepts_the_user_data_and_refuses_a_broken_copy(program, install):
    program("cloud-init")
    text = CHECKS.user_data(install)
    good, said = CHECKS.cloud_init_schema(text)
    assert good, said
    good, said = CHECKS.cloud_init_schema(text.replace("runcmd:", "runcmd: no\nx:"))
    assert not good


def test_shellcheck_finds_nothing(program):
    program("shellcheck")
    assert len(CHECKS.shell_scripts()) >= 5
    for path in CHECKS.shell_scripts():
        good, said = CHECKS.run("shellcheck", str(path))
        assert good, said


def test_terraform_accepts_the_cluster_and_its_tests_pass(program):
    program("terraform")
    try:
        good, said = CHECKS.terraform_check()
    except ConnectionError:
        skip_without("terraform", False)
    assert good, said
    assert "0 failed" in said


def test_all_scripts_are_looked_at():
    shells = {p for p in all_files() if p.read_bytes()[:40].startswith(b"#!/usr/bin/env bash")}
    assert shells == set(CHECKS.shell_scripts())
