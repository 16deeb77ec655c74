"""User data as Terraform renders it: valid YAML whose commands exist, and without secrets."""

from __future__ import annotations

import re
import shlex
import subprocess

import pytest
import yaml

from tests.deploy.files import AWS, CHECKS


@pytest.fixture(params=[True, False], ids=["installs", "image"])
def data(request):
    text = CHECKS.user_data(request.param)
    assert text.startswith("#cloud-config\n") and "%{" not in text
    return yaml.safe_load(text), request.param


def test_it_writes_the_settings_and_starts_the_units(data):
    found, installs = data
    assert set(found) == {"write_files", "runcmd"}
    (settings,) = found["write_files"]
    lines = dict(line.split("=", 1) for line in settings["content"].splitlines())
    # As systemd reads an EnvironmentFile: one word in double quotes.
    assert {k: shlex.split(v)[0] for k, v in lines.items()} == {
        k: str(v) for k, v in CHECKS.SETTINGS.items()
    }
    assert len(found["runcmd"]) == (2 if installs else 1)
    assert found["runcmd"][-1] == "systemctl enable --now --no-block ludus@actor"


def test_what_it_runs_is_shell_and_is_there(data):
    found, installs = data
    if not installs:
        return
    shell, option, script = found["runcmd"][0]
    assert (shell, option) == ("bash", "-euc")
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0
    assert (AWS / "provision.sh").exists() and "deploy/aws/provision.sh" in script


def test_units_that_machines_start_exist():
    nodes = (AWS / "terraform" / "nodes.tf").read_text(encoding="utf-8")
    units = {unit for line in re.findall(r'units = "([^"]+)"', nodes) for unit in line.split()}
    assert units >= {"ludus@head", "ludus@train", "ludus@actor", "ludus@tensorboard"}
    for unit in units:
        name, _, suffix = unit.partition("@")
        kind = ".timer" if suffix.endswith(".timer") else ".service"
        assert (AWS / "units" / f"{name}@{kind}").exists()
