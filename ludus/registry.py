"""The table of algorithms, loaded lazily. Packages of users may register more.

Below the command line, only this module knows algorithms by name. It does not import torch.
process/modules.py imports modules of users.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from typing import Any

from ludus.errors import LudusError, nearest
from ludus.process.modules import import_modules as import_modules


@dataclass(frozen=True)
class Entry:
    """One algorithm: the location of its code, and the settings of its variant."""

    name: str
    module: str  # "package.module:Class"; called with its config
    config: str  # "package.module:Config"
    summary: str
    paper: str = ""
    actions: tuple[str, ...] = ("discrete",)  # discrete, continuous, multidiscrete
    family: str = ""
    variant: Mapping[str, Any] = field(default_factory=dict)
    presets: str = ""  # a YAML file; empty: the package's own <name>.yaml


def _ours(
    code: str, name: str, summary: str, paper: str, actions: tuple[str, ...], **variant: Any
) -> Entry:
    """Return an entry of ludus.algos. `code`: "module:Class"; the module names its family."""
    module = code.partition(":")[0]
    config, family = f"ludus.algos.{module}:Config", module.partition("_")[0]
    return Entry(name, f"ludus.algos.{code}", config, summary, paper, actions, family, variant)


_dqn = partial(_ours, "dqn:DQN", actions=("discrete",))
_async = partial(_ours, "async_q:AsyncQ", paper="Mnih et al. 2016", actions=("discrete",))
_actor_critic = partial(_ours, actions=("discrete", "continuous", "multidiscrete"))
# Width of each dueling stream. Linear streams on the same features would be one linear layer.
STREAM = 64


def _rainbow(kind: str, alpha: float, lr: float, eps: float, noisy: float) -> dict[str, Any]:
    """The settings of Hessel et al. 2018, with the head and numbers of the given paper."""
    return {
        "head": {"kind": kind, "dueling": True, "noisy": noisy, "hidden": STREAM},
        "double": True,
        "n_step": 3,
        "replay": {"kind": "prioritized", "alpha": alpha},
        "epsilon": 0.0,  # noisy layers explore
        "lr": lr,
        "optimizer": {"kind": "adam", "eps": eps},
    }


def _valued_by_actors(variant: dict[str, Any]) -> dict[str, Any]:
    """Let actors compute the priority of new rows, as in Ape-X."""
    return {**variant, "replay": {**variant["replay"], "initial": "actor"}}


BUILT_IN: tuple[Entry, ...] = (
    _dqn("dqn", "Deep Q-network: replay and a target network", "Mnih et al. 2015"),
    _dqn(
        "double-dqn",
        "The online net chooses, the target net values",
        "van Hasselt et al. 2016",
        double=True,
    ),
    _dqn(
        "dueling-dqn",
        "State value and advantages in separate streams",
        "Wang et al. 2016",
        head={"kind": "scalar", "dueling": True, "hidden": STREAM},
    ),
    _dqn(
        "prioritized-dqn",
        "Replays what surprised most, corrected by importance weights",
        "Schaul et al. 2016",
        double=True,
        replay={"kind": "prioritized"},
    ),
    _dqn(
        "c51",
        "A categorical distribution of returns",
        "Bellemare et al. 2017",
        head={"kind": "categorical"},
    ),
    _dqn("qr-dqn", "Returns as fixed quantiles", "Dabney et al. 2018", head={"kind": "quantile"}),
    _dqn(
        "iqn",
        "Returns as an implicit quantile function",
        "Dabney et al. 2018b",
        head={"kind": "implicit"},
    ),
    _dqn(
        "rainbow",
        "C51 + double + dueling + noisy + prioritised + n-step",
        "Hessel et al. 2018",
        **_rainbow("categorical", alpha=0.5, lr=6.25e-5, eps=1.5e-4, noisy=0.5),
    ),
    _dqn(
        "rainbow-iqn",
        "Rainbow with implicit quantiles in place of C51",
        "Toromanoff et al. 2019",
        **_rainbow("implicit", alpha=0.2, lr=5e-5, eps=3.125e-4, noisy=0.1),
    ),
    _dqn(
        "munchausen-iqn",
        "IQN with the scaled log-policy added to the reward",
        "Vieillard et al. 2020",
        head={"kind": "implicit"},
        munchausen={"alpha": 0.9, "tau": 0.03, "clip": -1.0},
    ),
    _dqn(
        "apex-dqn",
        "Many actors, each with its own epsilon, value what they send",
        "Horgan et al. 2018",
        head={"kind": "scalar", "dueling": True, "hidden": STREAM},
        double=True,
        n_step=3,
        replay={
            "kind": "prioritized",
            "alpha": 0.6,
            "beta": 0.4,
            "normalize": "buffer",
            "initial": "actor",
        },
        epsilon=0.0,
        ladder={"base": 0.4, "alpha": 7.0},
        random_warmup=False,
        optimizer={"kind": "rmsprop", "centered": True, "decay": 0.95, "eps": 1.5e-7},
        lr=6.25e-5,
        clip_norm=40.0,
    ),
    _dqn(
        "apex-rainbow",
        "Rainbow whose actors value what they send",
        "Toromanoff et al. 2019",
        **_valued_by_actors(_rainbow("categorical", 0.5, lr=6.25e-5, eps=1.5e-4, noisy=0.1)),
    ),
    _dqn(
        "apex-rainbow-iqn",
        "Rainbow-IQN whose actors value what they send",
        "Toromanoff et al. 2019",
        **_valued_by_actors(_rainbow("implicit", 0.2, lr=5e-5, eps=3.125e-4, noisy=0.1)),
    ),
    _ours(
        "pqn:PQN",
        "pqn",
        "Q(lambda) on fresh rollouts, with layer norm in place of replay and target network",
        "Gallici et al. 2024",
        ("discrete",),
    ),
    _actor_critic(
        "ppo:PPO",
        "ppo",
        "Clipped policy optimisation with GAE, discrete and continuous",
        "Schulman et al. 2017",
    ),
    _actor_critic(
        "sac:SAC",
        "sac",
        "Soft actor-critic with a learned temperature, continuous and discrete",
        "Haarnoja et al. 2018",
        actions=("discrete", "continuous"),
    ),
    _actor_critic(
        "td3:TD3",
        "td3",
        "Deterministic policy gradients with twin critics, a delayed policy and target noise",
        "Fujimoto et al. 2018",
        actions=("continuous",),
    ),
    _actor_critic(
        "ppo:PPO",
        "recurrent-ppo",
        "PPO with an LSTM, for tasks that need memory; minibatches over environments",
        "Schulman et al. 2017",
        core="lstm",
    ),
    _actor_critic(
        "impala:Impala",
        "impala",
        "Actor-critic on lagging unrolls, corrected by V-trace; with or without an LSTM",
        "Espeholt et al. 2018",
    ),
    _actor_critic(
        "a3c:A3C",
        "a3c",
        "Actor-critic on fragments, by many actors over one shared net",
        "Mnih et al. 2016",
    ),
    _actor_critic(
        "a2c:A2C",
        "a2c",
        "Actor-critic on n steps of many environments at once",
        "Mnih et al. 2016",
    ),
    _actor_critic(
        "a2c:A2C",
        "actor-critic",
        "Actor-critic on every single step, with two nets and two learning rates",
        "Sutton & Barto 2018",
        n_steps=1,
        optimizer={"kind": "adam"},
        lr=3e-4,
        lr_value=1e-3,
        clip_norm=0.0,
    ),
    _actor_critic(
        "reinforce:Reinforce",
        "reinforce",
        "Policy gradient from the returns of whole episodes",
        "Williams 1992",
    ),
    _actor_critic(
        "reinforce:Reinforce",
        "reinforce-baseline",
        "REINFORCE less a learned value, which has its own net and learning rate",
        "Sutton & Barto 2018",
        baseline=True,
    ),
    _async("async-q", "Q-learning without replay, by many actors over one shared net", rule="q"),
    _async("async-sarsa", "The same with the action taken next in place of the best", rule="sarsa"),
    _async("async-nstep-q", "The same with rewards summed to the fragment's end", rule="nstep"),
)

_TABLE: dict[str, Entry] = {entry.name: entry for entry in BUILT_IN}
_LOADED: set[str] = set()  # groups of entry points


def register(entry: Entry) -> None:
    """Register an algorithm. Registering an equal entry again does nothing; a different entry with
    the same name is an error."""
    name = canonical(entry.name)
    known = _TABLE.get(name)
    if known is not None and known != entry:
        raise LudusError(
            "E109",
            f"the name {name} is already taken by {known.module}",
            where=entry.module,
            fix="register the algorithm under another name",
        )
    _TABLE[name] = entry


def canonical(name: str) -> str:
    """Normalize a name: rainbow_iqn and Rainbow-IQN become rainbow-iqn."""
    return name.strip().lower().replace("_", "-")


def entries() -> list[Entry]:
    """Return all entries, including those of users, in the order of registration."""
    load_entry_points()
    return list(_TABLE.values())


def find(name: str) -> Entry:
    load_entry_points()
    wanted = canonical(name)
    if wanted not in _TABLE:
        raise LudusError(
            "E106",
            f"no algorithm is called {name}{nearest(wanted, _TABLE)}",
            why="a typing error, or the package that registers it was not imported",
            fix="ludus list algos   or   --import your.package",
        )
    return _TABLE[wanted]


def locate(target: str) -> Any:
    """Import and return the object named "module:attribute"."""
    module, _, attribute = target.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
        return found
    except (ImportError, AttributeError) as error:
        raise LudusError(
            "E109",
            f"cannot use {target}: {error}",
            where=target,
            why="the package is not installed, or the name in it has changed",
            fix="try  python -c 'import " + module + "'",
        ) from error


def config_class(name: str) -> Any:
    """Return the pydantic model of an algorithm's settings."""
    return locate(find(name).config)


def make(settings: Any) -> Any:
    """Build an algorithm from its settings: `make(cfg.algo)`."""
    return locate(find(settings.name).module)(settings)


GROUPS = ("ludus.algorithms", "ludus.torsos", "ludus.environments")


def load_entry_points(groups: tuple[str, ...] = ("ludus.algorithms",)) -> None:
    """Register the entry points of installed packages, once per process.

    ludus.algorithms: an Entry, or a function that returns Entries. The other two groups: a
    function called without arguments, which registers torsos or environments.
    """
    for group in [g for g in groups if g not in _LOADED]:
        _LOADED.add(group)
        for point in metadata.entry_points(group=group):
            _use(group, point)


def _use(group: str, point: metadata.EntryPoint) -> None:
    try:
        found = point.load()
        if callable(found):
            found = found()
    except LudusError:
        raise
    except Exception as error:
        raise LudusError(
            "E109",
            f"entry point {point.name} of group {group} failed: {error}",
            where=point.value,
            why="an installed package registers something that cannot be imported",
            fix="repair or uninstall that package",
        ) from error
    if group == "ludus.algorithms":
        for entry in [found] if isinstance(found, Entry) else list(found or []):
            register(entry)
