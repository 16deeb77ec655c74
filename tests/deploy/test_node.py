"""deploy/aws/node.sh with a stand-in for the client of AWS: the token's way, and what is copied."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from tests.deploy.files import AWS

STAND_IN = """#!/bin/sh
echo "$*" >> "$CALLS"
case "$*" in
  *get-secret-value*) cat "$STORE" && echo ;;
  *put-secret-value*)
    for word; do case "$word" in file://*) cp "${word#file://}" "$STORE" ;; esac; done ;;
esac
"""


@pytest.fixture
def node(tmp_path):
    (tmp_path / "aws").write_text(STAND_IN)
    (tmp_path / "chown").write_text("#!/bin/sh\n")  # only root may give files away
    for name in ("aws", "chown"):
        (tmp_path / name).chmod(0o755)
    env = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "CALLS": str(tmp_path / "calls"),
        "STORE": str(tmp_path / "store"),
        "DEPLOY_SECRET": "arn",
        "DEPLOY_BUCKET": "bucket",
        "DEPLOY_DATA": str(tmp_path / "data"),
        "DEPLOY_TOKEN_FILE": str(tmp_path / "run" / "ray-token"),
    }

    def call(*words, wait=20):
        command = ["bash", AWS / "node.sh", *words]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=wait)

    call.place = tmp_path
    call.calls = lambda: (tmp_path / "calls").read_text() if (tmp_path / "calls").exists() else ""
    return call


def test_the_head_creates_the_token_and_the_others_read_it(node):
    assert node("token", "head").returncode == 0
    file = node.place / "run" / "ray-token"
    token = file.read_text()
    assert re.fullmatch(r"[0-9a-f]{64}", token) and file.stat().st_mode & 0o777 == 0o600
    assert (node.place / "store").read_text() == token
    file.unlink()
    assert node("token", "actor").returncode == 0
    assert file.read_text() == token
    assert node("token", "head").returncode == 0, "a head that starts again"
    assert file.read_text() == token and node.calls().count("put-secret-value") == 1
    assert token not in node.calls(), "no command line shows it"


def test_a_node_waits_for_the_head(node):
    with pytest.raises(subprocess.TimeoutExpired):
        node("token", "actor", wait=2)
    assert not (node.place / "run" / "ray-token").exists()


def test_roles_without_ray_get_no_token(node):
    for role in ("evaluator", "tensorboard"):
        assert node("token", role).returncode == 0
    assert not node.calls()


def test_the_learner_pushes_and_the_evaluator_fetches(node):
    data = node.place / "data"
    assert node("sync", "learner").returncode == 0
    assert (
        f"{data}/runs s3://bucket/runs" in node.calls() and "--no-follow-symlinks" in node.calls()
    )
    (node.place / "calls").unlink()
    assert node("sync", "evaluator").returncode == 0
    fetch, push = node.calls().splitlines()
    assert fetch.endswith(f"s3://bucket/runs {data}/runs")
    assert push.endswith(f"{data}/evaluations s3://bucket/evaluations")


def test_anything_else_is_refused(node):
    assert node("tokens", "head").returncode == 2 and node("token").returncode != 0
