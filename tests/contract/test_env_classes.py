"""Every registered algorithm trains, saves, loads and evaluates on every class of environment
that its actions allow. Driven by the registry; nothing here is about learning well."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch

from ludus import registry
from ludus.evals.agent import load_agent
from ludus.track.checkpoint.reader import load
from ludus.types import EnvSpec, tree_leaves
from tests.contract.tiny import NAMES, SLOW_NAMES, run, tiny


class Kind(NamedTuple):
    env: str
    shows: Callable[[EnvSpec], bool]  # that the environment is of the class it stands for
    settings: tuple[str, ...] = ()
    actions: str = "discrete"


KINDS = {
    "classic": Kind("CartPole-v1", lambda s: tree_leaves(s.obs)[0].shape == (4,)),
    "dict": Kind("ludus/IdentityDict-v0", lambda s: isinstance(s.obs, dict)),
    "pixels": Kind("ludus/IdentityPixels-v0", lambda s: tree_leaves(s.obs)[0].is_image),
    "masked": Kind("ludus/MaskedBandit-v0", lambda s: s.has_action_mask),
    "stack": Kind("ludus/Counter-v0", lambda s: tree_leaves(s.obs)[0].stack == 2, ("env.stack=2",)),
    "multidiscrete": Kind(
        "ludus/IdentityMulti-v0", lambda s: s.action_shape == (2,), actions="multidiscrete"
    ),
    "box": Kind(
        "ludus/IdentityBox-v0", lambda s: s.action_dtype == torch.float32, actions="continuous"
    ),
    "mujoco": Kind(
        "InvertedPendulum-v5",
        lambda s: tree_leaves(s.obs)[0].shape == (4,) and s.action_dtype == torch.float32,
        ("env.max_episode_steps=50", "env.normalize.obs=true", "env.normalize.reward=true"),
        "continuous",
    ),
    "atari": Kind(
        "ALE/Pong-v5",
        lambda s: tree_leaves(s.obs)[0].shape[-2:] == (84, 84) and tree_leaves(s.obs)[0].is_image,
        ("env.max_episode_steps=60",),
    ),
}
# A class of environments meets torsos and heads, which algorithms of a family share: the first of
# each is tried with `make test`, and all of them with `make test-slow`.
SLOW = {name: [pytest.mark.slow] for name in SLOW_NAMES}
CASES = [
    pytest.param(name, kind, id=f"{name}-{what}", marks=SLOW.get(name, []))
    for name in NAMES
    for what, kind in KINDS.items()
    if kind.actions in registry.find(name).actions
]


@pytest.mark.accept(150)
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_trains_saves_loads_and_evaluates(name, kind, tmp_path) -> None:
    result = run(tiny(name, kind.env, "steps=160", *kind.settings), tmp_path)
    assert result.reason == "finished" and result.step >= 160 and result.updates > 0
    saved = load(result.path)
    assert saved.step == result.step and saved.state["updates"] == result.updates
    assert saved.state["skipped"] == 0, "no update was refused"
    assert all(w.isfinite().all() for w in saved.tensors["model"].values())

    agent = load_agent(result.path)
    assert kind.shows(agent.spec), "the environment is not what this case is about"
    for key, value in saved.tensors["model"].items():
        assert torch.equal(agent.net.state_dict()[key], value), key
    evaluation = agent.evaluate(2)
    assert len(evaluation.scores) == len(evaluation.lengths) == len(evaluation.seeds) == 2
    assert all(math.isfinite(s) for s in evaluation.scores) and min(evaluation.lengths) > 0

    env = agent.make_env()  # and alone, as in a script of one's own
    obs, info = env.reset(seed=0)
    for _ in range(3):
        action = agent.act(obs, action_mask=info.get("action_mask"))
        assert env.action_space.contains(action)
        obs, _, _, _, info = env.step(action)
    env.close()
