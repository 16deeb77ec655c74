"""deploy/slurm.sbatch with stand-ins for Slurm and for the roles."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from tests.deploy.files import DEPLOY

SRUN = """#!/bin/sh
echo "srun $*" >> "$CALLS"
while [ "${1#--}" != "$1" ]; do shift; done
exec "$@"
"""
SCONTROL = """#!/bin/sh
echo "scontrol $*" >> "$CALLS"
[ "$1" != show ] || printf 'n1\\nn2\\nn3\\n'
"""
# A head and actors go on until they are ended; a training ends at once, or when it is asked to.
ROLE = """#!/bin/bash
echo "role $1 $DEPLOY_HEAD $DEPLOY_ACTORS $DEPLOY_ALL_ACTORS" >> "$CALLS"
trap 'echo "ended $1" >> "$CALLS"; exit "${SAVED:-143}"' TERM
case "$1" in
  token) mkdir -p "$(dirname "$DEPLOY_TOKEN_FILE")"; echo x > "$DEPLOY_TOKEN_FILE"; exit ;;
  train) [ -n "$SLOW" ] || exit "${CODE:-0}" ;;
esac
echo "ready $1" >> "$CALLS"
while true; do sleep 0.1; done
"""


@pytest.fixture
def job(tmp_path):
    (tmp_path / "bin").mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("ludus-role", ROLE)):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)

    def start(**variables):
        env = {
            "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "DEPLOY_PREFIX": str(tmp_path),
            "CALLS": str(tmp_path / "calls"),
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NUM_NODES": "3",
            "SLURM_JOB_NODELIST": "n[1-3]",
            "SLURM_CPUS_PER_TASK": "8",
            **variables,
        }
        command = ["bash", DEPLOY / "slurm.sbatch"]
        return subprocess.Popen(command, env=env, cwd=tmp_path, stderr=subprocess.PIPE, text=True)

    start.calls = lambda: (tmp_path / "calls").read_text().splitlines()
    start.token = tmp_path / ".ludus" / "slurm-7"
    return start


def test_one_node_learns_and_the_others_act(job):
    process = job(SLOW="1")
    try:
        ready = {f"ready {name}" for name in ("head", "train", "actor")}
        until(lambda: ready <= set(job.calls()))
        calls = job.calls()
        assert job.token.exists()
    finally:
        process.terminate()
        process.wait(20)
    assert "role head n1:6379 8 16" in calls and "role train n1:6379 8 16" in calls
    (actors,) = [call for call in calls if call.endswith("ludus-role actor")]
    assert "--nodes=2" in actors and "--exclude=n1" in actors


@pytest.mark.parametrize("code", [0, 3])
def test_the_job_ends_with_the_training_and_leaves_no_token(job, code):
    process = job(CODE=str(code))
    assert process.wait(20) == code
    assert not job.token.exists()
    assert not [call for call in job.calls() if "requeue" in call]


def test_a_warning_saves_and_queues_the_job_again(job):
    process = job(SLOW="1")
    until(lambda: "ready train" in job.calls())
    process.send_signal(signal.SIGUSR1)
    assert process.wait(20) == 0
    assert "ended train" in job.calls() and job.calls()[-1] == "scontrol requeue 7"
    assert not job.token.exists()


def test_one_node_is_too_few(job):
    process = job(SLURM_JOB_NUM_NODES="1")
    assert process.wait(20) == 2
    assert process.stderr is not None and "at least two nodes" in process.stderr.read()


def until(done):
    for _ in range(200):
        try:
            if done():
                return
        except FileNotFoundError:
            pass
        time.sleep(0.1)
    raise AssertionError("it never came")
