"""Agents that were trained on a cluster are scored without joining it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

import ludus
from ludus import LudusError
from ludus.evals.agent import _settings
from ludus.settings.resolve import from_file
from ludus.settings.trust import Trust


def test_an_agent_of_a_cluster_is_evaluated_without_trust():
    cfg = ludus.config("dqn", "CartPole-v1", **{"run.fleet": "ray", "ray.address": "10.0.0.1:6379"})
    tree = cfg.tree()
    with pytest.raises(LudusError, match="names a Ray cluster"):
        from_file(tree, "config.yaml", Trust())  # to resume it would join
    saved = SimpleNamespace(path=Path("last"), state={"config": tree})
    found = _settings(saved, Trust())
    assert found.env == cfg.env and found.algo == cfg.algo and not found.ray.address
