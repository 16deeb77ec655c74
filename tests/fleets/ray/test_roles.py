"""Head, actors and learner as commands of their own."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from ludus import LudusError
from ludus.cli.cluster import roles as commands
from ludus.fleets.ray import roles
from ludus.settings.sections import RayConfig
from tests.started import kept, survivors

ROOT = Path(__file__).parents[3]


class FakeNode:
    """A node that runs for some looks, then ends, as often as `lives` says."""

    reason = "the cluster has dropped it"

    def __init__(self, lives: list[int]) -> None:
        self.lives, self.left, self.starts, self.closed = lives, 0, 0, False

    def start(self, resting=None) -> bool:
        self.starts += 1
        if not self.lives:
            return False
        self.left = self.lives.pop(0)
        return self.left > 0

    def reads(self) -> bool:
        self.left -= 1
        return self.left >= 0

    def close(self) -> None:
        self.closed = True


class EndError(Exception):
    pass


def keeper(node, check=lambda: None, looks=20, **more):
    """A keeper that is interrupted after some looks, and what it said."""
    said = []

    def rest(seconds: float) -> None:
        nonlocal looks
        looks -= 1
        if looks < 0:
            raise EndError

    return roles.Keeper(node, check, said.append, "it runs", rest, **more), said


def test_a_node_that_the_cluster_dropped_is_started_again():
    node = FakeNode([3, 2, 100])
    kept_node, said = keeper(node)
    with pytest.raises(EndError):
        kept_node.run()
    assert node.starts == 3 and node.closed
    assert said[0] == "it runs"
    assert [text for text in said if "dropped" in text and "joins again" in text] == said[1:4:2]
    assert said.count("it has joined again, as a new node") == 2


def test_a_node_waits_for_its_cluster_to_return():
    answers = [LudusError("E502", "gone"), LudusError("E502", "gone"), None, None]

    def check():
        if error := answers.pop(0):
            raise error

    node = FakeNode([1, 100])
    kept_node, said = keeper(node, check)
    with pytest.raises(EndError):
        kept_node.run()
    assert len(answers) == 1 and node.starts == 2 and said[-1].startswith("it has joined again")


def test_a_node_gives_up_when_its_cluster_is_gone_for_long():
    def check():
        raise LudusError("E502", "no Ray cluster there")

    node = FakeNode([1])
    kept_node, _ = keeper(node, check, patience=-1.0)
    with pytest.raises(LudusError, match="no Ray cluster"):
        kept_node.run()
    assert node.closed


def test_a_node_that_does_not_start_is_one_error():
    node = FakeNode([])
    kept_node, said = keeper(node)
    with pytest.raises(LudusError, match="the node did not start: the cluster has dropped it"):
        kept_node.run()
    assert not said and node.closed


def test_the_token_is_made_once_and_only_for_this_user(tmp_path):
    file = roles.new_key(tmp_path / "new" / "key")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and len(file.read_text()) == 64
    first = file.read_text()
    assert roles.new_key(file).read_text() == first
    file.chmod(0o644)
    with pytest.raises(LudusError, match="other users can read the token"):
        roles.new_key(file)
    with pytest.raises(LudusError, match="cannot be written"):
        roles.new_key(file / "below-a-file")


def test_wrong_places_to_join_are_one_error_each(tmp_path):
    file = roles.new_key(tmp_path / "key")

    def said(address):
        with pytest.raises(LudusError) as caught:
            roles.joining(RayConfig(address=address, key_file=str(file)), 1)
        assert caught.value.code in ("E103", "E502") and caught.value.fix
        return str(caught.value)

    assert "not HOST:PORT" in said("there")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        assert "refused" in said(f"127.0.0.1:{port}")
        taken.listen()
        assert "loopback" in said(f"127.0.0.1:{port}")


def test_actors_and_replay_roles_are_offered_as_resources(monkeypatch):
    monkeypatch.setattr(roles, "joining_values", lambda cfg: {})
    monkeypatch.setattr(roles, "check_cluster", lambda cfg, values: None)
    cfg = RayConfig(address="10.0.0.1:6379")
    node, _ = roles.joining(cfg, 2, "10.0.0.2", role="ludus-replay")
    assert '--resources={"ludus-replay": 2}' in node.words and "--num-cpus=0" in node.words
    assert "--node-ip-address=10.0.0.2" in node.words
    node, _ = roles.joining(cfg, 3)
    assert '--resources={"ludus-actor": 3}' in node.words and "--num-cpus=3" in node.words


def test_a_port_in_use_is_one_error():
    with socket.create_server(("127.0.0.1", 0)) as server:
        with pytest.raises(LudusError, match="no head can listen"):
            commands._check_free("127.0.0.1", server.getsockname()[1])


def test_a_head_says_what_can_join_it():
    def said(host, actors, alone):
        return commands.head_message(f"{host}:6379", Path("key"), actors, alone=alone)

    alone = said("127.0.0.1", 0, True)
    assert "no room for actors" in alone and "--host ADDRESS" in alone
    assert "ludus actor --join" not in alone
    assert "no room" not in said("127.0.0.1", 2, True)
    others = said("10.0.0.1", 0, False)
    assert "ludus actor --join 10.0.0.1:6379" in others and "anywhere" not in others


def test_a_learner_is_a_training_on_the_cluster(monkeypatch, tmp_path):
    """What the user types wins."""
    seen = {}
    monkeypatch.setattr(commands, "train", lambda words, **more: seen.update(more, words=words))
    commands.learner(
        "10.0.0.1:6379", ["dqn", "CartPole-v1", "ray.keep=5s", "actors=3"], tmp_path / "key",
        run="night",
    )  # fmt: skip
    assert seen["run"] == "night"
    assert seen["words"] == [
        "dqn", "CartPole-v1", "ray.keep=5s", "actors=3", "run.fleet=ray",
        "ray.address=10.0.0.1:6379", f"ray.key_file={tmp_path / 'key'}", "ray.insecure=false",
        "ray.resource=ludus-actor",
    ]  # fmt: skip


def command(folder, name, *words):
    """One role, with its output in a file."""
    with (folder / f"{name}.log").open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "ludus", *words], cwd=folder, stdout=out, stderr=out,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    return kept(process)


def until(done):
    """The time limit of every test ends it."""
    while not (found := done()):
        time.sleep(0.2)
    return found


def actors_below(process):
    found = psutil.Process(process.pid).children(recursive=True)
    return sorted(p.pid for p in found if "RayActor" in " ".join(p.cmdline()))


@pytest.mark.slow
def test_actors_outlive_a_killed_learner_and_its_next_start_finds_them(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        where = f"127.0.0.1:{free.getsockname()[1]}"
    port, key = where.split(":")[1], str(tmp_path / "key")
    head = command(tmp_path, "head", "head", "--port", port, "--key-file", key, "--actors", "2")
    until(lambda: "head of a cluster" in (tmp_path / "head.log").read_text())

    def learner():
        return command(
            tmp_path, "learner", "learner", "--join", where, "--key-file", key, "dqn",
            "CartPole-v1", "actors=2", "steps=100M", "warmup=100", "log.every=500", "batch=8",
            "run.checkpoint_every=1000", "run.exact=off", "tensorboard=off", "log.report=off",
            "--run", "night", "--runs-dir", str(tmp_path),
        )  # fmt: skip

    def step():
        file = tmp_path / "night" / "metrics.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return json.loads(lines[-1])["step"] if lines else 0

    first = learner()
    until(lambda: step() >= 3000 or first.poll() is not None)
    before = actors_below(head)
    assert len(before) == 2, (tmp_path / "learner.log").read_text()
    first.send_signal(signal.SIGKILL)
    first.wait()
    known = step()
    second = learner()
    until(lambda: step() > known + 1000 or second.poll() is not None)
    assert actors_below(head) == before, "the same processes go on"
    second.terminate()
    assert second.wait() in (0, 143), (tmp_path / "learner.log").read_text()
    until(lambda: not actors_below(head))  # a learner that ends takes its actors along
    family = [p.pid for p in psutil.Process(head.pid).children(recursive=True)]
    head.send_signal(signal.SIGKILL)
    head.wait()
    assert not survivors(family)
