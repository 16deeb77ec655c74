"""Every option of the verbs for several machines changes something."""

from __future__ import annotations

import pytest

from ludus.cli.cluster import roles as verbs
from ludus.fleets.ray import roles
from tests.cli.conftest import call
from tests.cli.covered import changes

JOIN = ("--join", "10.0.0.1:6379")


@pytest.fixture
def nodes(monkeypatch):
    """(settings, words) of the nodes that commands start; none is."""
    found = []

    def joining_values(cfg):
        found.append(cfg)
        return {}

    monkeypatch.setattr(roles, "joining_values", joining_values)
    monkeypatch.setattr(roles, "check_cluster", lambda cfg, values: None)
    monkeypatch.setattr(roles.Keeper, "run", lambda self: found.append(self.node))
    monkeypatch.setattr(verbs, "_check_free", lambda host, port: None)
    return found


def started(nodes, *words):
    nodes.clear()
    answer = call(*words)
    assert answer.code == 0, answer.err
    *cfg, node = nodes
    return (cfg or [None])[0], node.words


@changes("actor --join", "actor --key-file", "actor --actors", "actor --gpus", "actor --host",
         "actor --insecure")  # fmt: skip
def test_actor(nodes, tmp_path):
    cfg, words = started(nodes, "actor", *JOIN, "--actors", "3")
    assert cfg.address == JOIN[1] and "--num-cpus=3" in words and not cfg.insecure
    assert f"--address={JOIN[1]}" in words and '--resources={"ludus-actor": 3}' in words
    assert not [word for word in words if word.startswith("--node-ip-address")]
    more = ("--gpus", "2", "--host", "10.0.0.2", "--insecure", "--key-file", tmp_path / "key")
    cfg, words = started(nodes, "actor", *JOIN, *more)
    assert {"--num-gpus=2", "--node-ip-address=10.0.0.2"} <= set(words)
    assert cfg.insecure and cfg.key_file == str(tmp_path / "key")


@changes("replay --join", "replay --key-file", "replay --roles", "replay --host",
         "replay --insecure")  # fmt: skip
def test_replay(nodes, tmp_path):
    cfg, words = started(nodes, "replay", *JOIN)
    assert cfg.address == JOIN[1] and '--resources={"ludus-replay": 1}' in words
    assert not cfg.insecure and not cfg.key_file and "--num-cpus=0" in words
    more = ("--roles", "2", "--host", "10.0.0.2", "--insecure", "--key-file", tmp_path / "key")
    cfg, words = started(nodes, "replay", *JOIN, *more)
    assert {'--resources={"ludus-replay": 2}', "--node-ip-address=10.0.0.2"} <= set(words)
    assert cfg.insecure and cfg.key_file == str(tmp_path / "key")


@changes("evaluator --join", "evaluator --key-file", "evaluator --gpus", "evaluator --host",
         "evaluator --insecure")  # fmt: skip
def test_evaluator(nodes, tmp_path):
    cfg, words = started(nodes, "evaluator", *JOIN)
    assert cfg.address == JOIN[1] and '--resources={"ludus-evaluator": 1}' in words
    assert not cfg.insecure and not cfg.key_file and "--num-gpus=0" in words
    more = ("--gpus", "1", "--host", "10.0.0.2", "--insecure", "--key-file", tmp_path / "key")
    cfg, words = started(nodes, "evaluator", *JOIN, *more)
    assert {"--num-gpus=1", "--node-ip-address=10.0.0.2"} <= set(words)
    assert cfg.insecure and cfg.key_file == str(tmp_path / "key")


@changes("head --key-file", "head --host", "head --port", "head --actors")
def test_head(nodes, tmp_path):
    key = ("--key-file", tmp_path / "key")
    _, words = started(nodes, "head", *key)
    assert {"--head", "--node-ip-address=127.0.0.1", "--port=6379", "--num-cpus=0"} <= set(words)
    assert (tmp_path / "key").is_file() and "--include-dashboard=false" in words
    more = ("--host", "10.0.0.1", "--port", "7000", "--actors", "2")
    _, words = started(nodes, "head", *key, *more)
    assert {"--node-ip-address=10.0.0.1", "--port=7000", "--num-cpus=2"} <= set(words)


@changes("learner --join", "learner --key-file", "learner --insecure", "learner --run",
         "learner --runs-dir", "learner --quiet", "learner -q", "learner --json")  # fmt: skip
def test_learner(monkeypatch, tmp_path):
    seen = {}
    monkeypatch.setattr(verbs, "train", lambda words, **more: seen.update(more, words=words) or 0)
    assert call("learner", *JOIN, "dqn", "CartPole-v1").code == 0
    assert f"ray.address={JOIN[1]}" in seen["words"] and "ray.insecure=false" in seen["words"]
    assert (seen["run"], seen["runs_dir"], seen["quiet"], seen["as_json"]) == (
        None,
        None,
        False,
        False,
    )
    more = ("--run", "night", "--runs-dir", tmp_path, "--json", "--insecure", "--key-file", "key")
    for quiet in ("--quiet", "-q"):
        assert call("learner", *JOIN, quiet, *more, "dqn", "CartPole-v1").code == 0
        assert (seen["run"], seen["runs_dir"]) == ("night", tmp_path)
        assert seen["quiet"] and seen["as_json"]
        assert {"ray.insecure=true", "ray.key_file=key"} <= set(seen["words"])
