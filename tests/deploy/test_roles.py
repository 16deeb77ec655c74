"""deploy/role.sh with stand-ins for ray, ludus and tensorboard, which note how they are called."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import pytest

from ludus.cli.main import app
from ludus.settings.keys import SECTIONS
from ludus.settings.resolve import MODELS
from tests.deploy.files import DEPLOY, all_files

SCRIPT = DEPLOY / "role.sh"
STAND_IN = """#!/bin/sh
echo "$(basename "$0") $* [$RAY_AUTH_MODE]" >> "$CALLS"
case "$1" in
  health-check) echo "$ANSWER"; exit "${CODE:-0}" ;;
  eval) mkdir -p "$(echo "$*" | sed 's/.*--out //')" ;;
esac
"""


@pytest.fixture
def place(tmp_path):
    """A folder with the stand-ins, a token and a run with two checkpoints."""
    for name in ("ray", "ludus", "tensorboard"):
        (tmp_path / name).write_text(STAND_IN)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "token").write_text("0" * 64)
    (tmp_path / "token").chmod(0o600)
    for step in ("000000001000", "000000002000"):
        checkpoint = tmp_path / "runs" / "run" / "checkpoints" / step
        checkpoint.mkdir(parents=True)
        (checkpoint / "manifest.json").touch()
    return tmp_path


def role(place, *words, timeout=20, **variables):
    env = {
        "PATH": f"{place}:{os.environ['PATH']}",
        "HOME": str(place),
        "CALLS": str(place / "calls"),
        "DEPLOY_TOKEN_FILE": str(place / "token"),
        "DEPLOY_HEAD": "head:6379",
        "DEPLOY_TRAIN": "impala pong steps=20M",
        **variables,
    }
    return subprocess.run(
        ["bash", SCRIPT, *words],
        env=env,
        cwd=place,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def calls(place):
    path = place / "calls"
    return path.read_text().splitlines() if path.exists() else []


def test_every_verb_of_ludus_in_these_files_is_a_verb_of_its_command_line():
    verbs = {command.name for command in app.registered_commands}
    verbs |= {group.name for group in app.registered_groups}
    used = set()
    for path in all_files():
        text = path.read_text(encoding="utf-8")
        used |= set(re.findall(r"(?:exec |^\s*|`|\$ )ludus ([a-z]+)\b", text, re.MULTILINE))
    assert {"train", "eval"} <= used <= verbs


def test_every_setting_that_a_role_gives_is_one():
    text = SCRIPT.read_text(encoding="utf-8")
    sections = set(re.findall(r"[\s\"]([a-z]+)\.[a-z_]+=", text))
    assert sections == {"run", "ray"}
    assert sections <= set(SECTIONS)
    for section, key in re.findall(r"[\s\"](run|ray)\.([a-z_]+)=", text):
        assert key in MODELS[section].model_fields


def test_no_variable_of_these_files_would_be_taken_for_a_setting():
    """Ludus reads every LUDUS_* variable as a setting and refuses unknown ones."""
    for path in all_files():
        names = set(re.findall(r"\bLUDUS_\w+", path.read_text(encoding="utf-8")))
        assert names <= {"LUDUS_RUNS_DIR"}, path


def test_learner_is_a_node_without_actors_and_trains_there(place):
    done = role(place, "learner", DEPLOY_ALL_ACTORS="16", DEPLOY_RUN="first")
    assert done.returncode == 0, done.stderr
    node, train = [call for call in calls(place) if "health-check" not in call]
    assert node.startswith("ray start --address=head:6379 --num-cpus=0 ") and "--block" not in node
    assert train == (
        "ludus train impala pong steps=20M --run first run.fleet=ray ray.address=head:6379 "
        "run.actors=16 [token]"
    )


def test_head_and_nodes_ask_for_the_token_and_have_no_dashboard(place):
    for words in (("head",), ("actor",), ("replay",)):
        assert role(place, *words, DEPLOY_ACTORS="8", DEPLOY_NODE_IP="10.0.0.5").returncode == 0
    nodes = [call for call in calls(place) if " start " in call]
    assert all(call.endswith(" [token]") and "--disable-usage-stats" in call for call in nodes)
    assert all("--block" in call and "--node-ip-address=10.0.0.5" in call for call in nodes)
    head, actor, replay = nodes
    assert "--head" in head and "--include-dashboard=false" in head and "--num-cpus=0" in head
    assert "--num-cpus=8" in actor and '{"ludus-actor": 8}' in actor
    assert "--num-cpus=0" in replay and '{"ludus-replay": 1}' in replay


@pytest.mark.parametrize("name", ["head", "learner", "actor", "replay"])
def test_without_a_closed_token_no_node_starts(place, name):
    (place / "token").chmod(0o644)
    done = role(place, name)
    assert done.returncode == 2 and "others can read" in done.stderr
    (place / "token").unlink()
    done = role(place, name)
    assert done.returncode == 2 and "no token in" in done.stderr
    assert not calls(place)


def test_a_wrong_token_ends_the_role_at_once(place):
    answer = "ray.exceptions.AuthenticationError: InvalidAuthToken"
    done = role(place, "actor", ANSWER=answer, CODE="1")
    assert done.returncode == 2 and "not that of the cluster at head:6379" in done.stderr
    assert len(calls(place)) == 1


def test_a_head_that_never_answers_ends_the_wait(place):
    done = role(place, "actor", CODE="1", DEPLOY_WAIT_SECONDS="0")
    assert done.returncode == 2 and "no Ray head answers at head:6379" in done.stderr


def test_the_token_is_created_once_and_closed(place):
    (place / "token").unlink()
    assert role(place, "token").returncode == 0
    first = (place / "token").read_text()
    assert re.fullmatch(r"[0-9a-f]{64}", first)
    assert (place / "token").stat().st_mode & 0o777 == 0o600
    assert role(place, "token").returncode == 0
    assert (place / "token").read_text() == first


def test_the_evaluator_scores_the_newest_checkpoint_once(place):
    with pytest.raises(subprocess.TimeoutExpired):
        role(place, "evaluator", timeout=2, DEPLOY_EVAL_SECONDS="0.2")
    (call,) = calls(place)
    assert call.startswith("ludus eval runs/run --checkpoint 000000002000 --no-video ")
    assert (place / "evaluations" / "run" / "000000002000").is_dir()


def test_tensorboard_listens_on_the_loopback_address(place):
    assert role(place, "tensorboard").returncode == 0
    assert "--host 127.0.0.1" in calls(place)[0]


@pytest.mark.parametrize("words", [(), ("leaner",), ("health",), ("health", "leaner")])
def test_an_unknown_role_is_refused(place, words):
    done = role(place, *words)
    assert done.returncode == 2 and "role" in done.stderr and not calls(place)


def test_files_name_only_roles_that_exist(place):
    known = re.search(r"^  (token \|.*)\) ", SCRIPT.read_text(encoding="utf-8"), re.MULTILINE)
    assert known is not None
    roles = set(known[1].split(" | "))
    for path in all_files():
        named = set(re.findall(r"ludus-role ([a-z]+)\b", path.read_text(encoding="utf-8")))
        assert named <= roles | {"health"}, path


def test_scripts_are_shell():
    assert shutil.which("bash")
    for path in [*DEPLOY.rglob("*.sh"), DEPLOY / "slurm.sbatch"]:
        done = subprocess.run(["bash", "-n", path], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "set -euo pipefail" in path.read_text(encoding="utf-8")
