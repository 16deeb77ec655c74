"""The rules of an evaluation: the agent's own or those of a protocol, and settings that override.

The observations and the actions that the network was built for stay, whatever the protocol says.
If they differ from the protocol, the label of the score says so.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ludus.contract import Algorithm
from ludus.envs import EXECUTION_SETTINGS
from ludus.envs.atari.names import ale_id, old_game
from ludus.envs.atari.protocols import PROTOCOLS
from ludus.envs.config import EnvConfig
from ludus.errors import LudusError, nearest
from ludus.secret_masking import masked
from ludus.settings.keys import KeyFinder, split_override
from ludus.settings.layers import Layered, Rank
from ludus.settings.resolve import Config, build, models_of

GREEDY = "greedy"
NAMES = (GREEDY, *PROTOCOLS)
# Share of random actions of a protocol, for algorithms that have an epsilon, as in Mnih et al. 2015
# and Castro et al. 2018.
EPSILON = {"dqn-2015": 0.05, "dopamine": 0.001}
# Flags of a game that the network depends on.
AGENT_FLAGS = ("size", "gray", "obs", "resize", "full_actions")
NUM_ENVS = 10  # default number of games at a time


@dataclass(frozen=True)
class Rules:
    """The environment to play in and how actions are chosen."""

    name: str  # greedy, or a protocol
    env: EnvConfig
    epsilon: float = 0.0
    sample: bool = False
    num_envs: int = NUM_ENVS
    changed: str = ""  # hash of typed settings that change the game; empty: none
    explores: bool = True  # the algorithm has an epsilon
    typed_epsilon: bool = False  # differs from the epsilon of these rules

    @property
    def modified(self) -> bool:
        """Whether the game or its epsilon differs from the run's or the protocol's. The result is
        then no score of the run."""
        return bool(self.changed) or self.typed_epsilon

    @property
    def label(self) -> str:
        """The beginning of file names: one label for one way to play."""
        parts = [] if self.name == GREEDY else [self.name]
        facts = self.env.score_facts
        if parts and facts.get("protocol", "").endswith("*"):
            parts.append(facts["protocol_hash"])
        elif self.changed:
            parts.append(f"env{self.changed}")
        if self.sample:
            parts.append("sample")
        if self.explores and self.epsilon != EPSILON.get(self.name, 0.0):
            parts.append(f"epsilon{self.epsilon:g}")
        return "-".join(parts) or GREEDY


def make_rules(
    cfg: Config,
    algorithm: Algorithm,
    *,
    protocol: str | None = None,
    settings: Sequence[str | tuple[str, object]] = (),
    epsilon: float | None = None,
    sample: bool = False,
) -> Rules:
    """`settings`: of env, as on the command line; they override the protocol."""
    name = protocol or GREEDY
    if sample:
        check_sample(algorithm)
    rules = Rules(name, _env_of(cfg.env, name), sample=sample)
    if settings:
        rules = _with_settings(cfg.model_copy(update={"env": rules.env}), rules, settings)
    usual, explores = cfg.eval.epsilon, "epsilon" in algorithm.plan.schedules
    if name != GREEDY:  # a protocol has its own epsilon
        usual = EPSILON.get(name, 0.0) if explores else 0.0
    given = usual if epsilon is None else epsilon
    check_epsilon(algorithm, given)
    return replace(rules, epsilon=given, explores=explores, typed_epsilon=given != usual)


def check_epsilon(algorithm: Algorithm, epsilon: float) -> None:
    """Refuse an epsilon for an algorithm that has none: it would do nothing."""
    if epsilon > 0 and "epsilon" not in algorithm.plan.schedules:
        raise LudusError(
            "E104",
            f"epsilon {epsilon:g}, but the algorithm takes no random actions of that kind",
            where="--epsilon, or eval.epsilon",
            why="it has no schedule called epsilon: its policy explores by itself",
            fix="leave epsilon out;  ludus eval RUN --sample  samples the policy",
        )


def check_sample(algorithm: Algorithm) -> None:
    """Refuse sampling for value-based algorithms: they have no probabilities to sample from."""
    if "epsilon" in algorithm.plan.schedules:
        raise LudusError(
            "E104",
            "--sample, but the algorithm has no policy to sample from",
            where="--sample",
            why="it takes the action of the highest value, or a random one by its epsilon",
            fix="leave it out;  --epsilon 0.05  plays that share of random actions",
        )


def _env_of(env: EnvConfig, name: str) -> EnvConfig:
    if name not in NAMES:
        raise LudusError(
            "E103",
            f"protocol {name} is not one of: {', '.join(NAMES)}{nearest(name, NAMES)}",
            where="--protocol",
            fix="--protocol saber",
        )
    if name == GREEDY:
        return env
    game = old_game(env.id)
    if game is not None:
        raise LudusError(
            "E104",
            f"protocols are for names such as {game} or {ale_id(game)}; {env.id} brings its own "
            "rules",
            where="--protocol",
            why="that old id has a frame skip and a stickiness of its own",
            fix="leave it out:  --protocol greedy  plays by the run's own rules",
        )
    if env.atari is None:
        raise LudusError(
            "E104",
            f"protocol {name} is for Atari games; {env.id} is none",
            where="--protocol",
            fix="leave it out:  --protocol greedy  plays by the run's own rules",
        )
    wanted = PROTOCOLS[name]
    kept = {flag: getattr(env.atari, flag) for flag in AGENT_FLAGS}
    flags = wanted.flags.model_copy(update=kept)
    stuck = None if wanted.stuck_frames is None else wanted.stuck_frames // flags.skip
    change = {"protocol": name, "atari": flags, "max_stuck": stuck, "max_episode_steps": None}
    return env.model_copy(update=change)


def _with_settings(
    cfg: Config, rules: Rules, settings: Sequence[str | tuple[str, object]]
) -> Rules:
    models = models_of(cfg.algo_name)
    layers = Layered()
    layers.lay(cfg.tree(), Rank.FILE, "the agent's settings")
    finder, num_envs = KeyFinder(models, layers), rules.num_envs
    for item in settings:
        text, value = split_override(item) if isinstance(item, str) else item
        key, value = finder.find(text, value, "command line", cfg.env.id)
        if key[0] != "env" or key == ("env", "protocol"):
            raise LudusError(
                "E104",
                f"{'.'.join(key)} is not a setting of an evaluation",
                where="command line",
                why="the agent is fixed; only the rules it plays by (env) can be chosen",
                fix="--protocol NAME" if key[0] == "env" else "env.KEY=VALUE, or leave it out",
            )
        layers.put(key, value, Rank.COMMAND, "command line")
        if key == ("env", "num"):
            num_envs = 0
    env = build(models, layers)[0].env
    num_envs = num_envs or env.num_envs
    return replace(rules, env=env, num_envs=num_envs, changed=_difference(rules.env, env))


def _difference(before: EnvConfig, after: EnvConfig) -> str:
    """A short hash of the differences in the game itself; empty if there are none."""
    ignored = {*EXECUTION_SETTINGS, "num"}  # the number of games at a time changes no score
    old, new = (masked(env.model_dump(mode="json", exclude=ignored)) for env in (before, after))
    other = {name: value for name, value in new.items() if value != old[name]}
    return hashlib.sha256(json.dumps(other, sort_keys=True).encode()).hexdigest()[:8] * bool(other)
