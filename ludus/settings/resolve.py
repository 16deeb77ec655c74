"""Resolve the settings of a run from all sources to one frozen tree of seven sections.

Precedence: command line > LUDUS_* variables > file (-c) > preset > variant > default.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SerializeAsAny, model_validator

from ludus import registry
from ludus.contract import Frozen
from ludus.envs.config import EnvConfig
from ludus.errors import LudusError
from ludus.secret_masking import is_masked, learn, masked, variable
from ludus.settings import yaml as config_yaml
from ludus.settings.defaults import lay_episodes, lay_protocol
from ludus.settings.errors import not_a_table, unknown_key, validate
from ludus.settings.keys import SECTIONS, KeyFinder, check_one_length, read_value, split_override
from ludus.settings.layers import Layered, Rank, defaults_of, leaves, plain
from ludus.settings.sections import ActorConfig, EvalConfig, LogConfig, RayConfig, RunConfig
from ludus.settings.trust import NOTHING, Trust, import_asked


class Config(Frozen):
    """All settings of a run. `resolve` makes it; config.yaml stores it."""

    algo: SerializeAsAny[Frozen]  # the algorithm's own model; it has a field `name`
    env: EnvConfig
    run: RunConfig = RunConfig()
    actor: ActorConfig = ActorConfig()
    ray: RayConfig = RayConfig()
    log: LogConfig = LogConfig()
    eval: EvalConfig = EvalConfig()

    @model_validator(mode="after")
    def _named(self) -> Config:
        if "name" not in type(self.algo).model_fields:
            raise ValueError("the algorithm's settings need a field  name: str")
        return self

    @property
    def algo_name(self) -> str:
        return str(getattr(self.algo, "name"))  # noqa: B009 (mypy knows only Frozen)

    @property
    def total_envs(self) -> int:
        """The environments of all actors."""
        return self.run.actors * self.env.num_envs

    @property
    def lockstep(self) -> bool:
        """Whether actors wait for each other, so that results do not depend on timing."""
        if not self.run.capabilities.own_processes:
            return True
        return self.actor.lockstep == "on" or (
            self.actor.lockstep == "auto" and self.run.exact == "on"
        )

    def tree(self) -> dict[str, Any]:
        """Plain tables, in the order of the sections."""
        tree: dict[str, Any] = plain(self)
        return tree

    def flat(self) -> dict[str, Any]:
        """Dotted key -> plain value."""
        return {".".join(key): value for key, value in leaves(self.tree())}

    def to_yaml(self) -> str:
        """Return the YAML text of config.yaml, without secrets."""
        return config_yaml.write_text(masked(self.tree()))

    def digest(self) -> str:
        """Return twelve hex digits that depend on all settings except secrets and `run.imports`,
        which only names modules."""
        tree = masked(self.tree())
        del tree["run"]["imports"]
        text = json.dumps(tree, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Resolved:
    """A configuration and the source of each value."""

    config: Config
    sources: dict[str, str]  # dotted key -> "command line", "my.yaml:4", "preset classic", ...
    preset: str | None = None
    user: dict[str, Any] = field(default_factory=dict)  # merged settings of the user
    notes: tuple[str, ...] = ()  # messages for the user, one line each

    def typed(self, key: str) -> bool:
        """Whether the user chose the value: it is no default and not from the run's own file."""
        source = self.sources.get(key, "default").partition(" ")[0]
        return source not in ("default", "variant", "preset", STORED)


Typed = tuple[str, Any, str, Rank]  # key, value, source, rank


@dataclass
class Request:
    """The unresolved request of a user."""

    algo: str | None = None
    env: str | None = None
    overrides: Sequence[str | tuple[str, Any]] = ()  # "key=value" or (key, value)
    files: Sequence[Path | str] = ()
    preset: str | None = None  # a name, or "none" for no preset at all
    environ: Mapping[str, str] | None = None  # None: the process's own

    def typed(self) -> list[Typed]:
        """Return variables and overrides, weakest first."""
        found: list[Typed] = []
        environ = os.environ if self.environ is None else self.environ
        for name in sorted(environ):
            if name.startswith("LUDUS_") and not name.startswith(RESERVED):
                key = name.removeprefix("LUDUS_").lower().replace("__", ".")
                found.append((key, read_value(key, environ[name], name), name, Rank.ENVIRONMENT))
        for item in self.overrides:
            key, value = split_override(item) if isinstance(item, str) else item
            source = "command line" if isinstance(item, str) else "python"
            found.append((key, value, source, Rank.COMMAND))
        for key, given in (("algo.name", self.algo), ("env.id", self.env)):
            if given is None:
                continue
            section, _, name = key.partition(".")
            for other, value, _, rank in found:
                if isinstance(value, Mapping):
                    value = value.get(name, given)
                if rank == Rank.COMMAND and other in (key, section) and value != given:
                    raise LudusError(
                        "E104",
                        f"both {given} and {other}={value} were given",
                        where="command line",
                        fix="keep one of them",
                    )
            found.append((key, given, "command line", Rank.COMMAND))
        return found


STORED = "config.yaml"  # the source of values from a run's own file
# Environment variables that are not settings.
RESERVED = ("LUDUS_RUNS_DIR", "LUDUS_DEBUG", "LUDUS_NATIVE", "LUDUS_TEST")


def resolve(request: Request) -> Resolved:
    """Resolve a request to a configuration. Raise LudusError, with the source of the value."""
    from ludus.envs.ids import resolve_id, version_notes
    from ludus.presets import pick

    registry.load_entry_points(registry.GROUPS)
    typed = request.typed()
    files = [config_yaml.read_file(Path(path), follow=True) for path in request.files]
    file_trees = [_normal(file.tree) for file in files]
    modules = import_asked([(key, value) for key, value, _, _ in typed], file_trees)
    entry, asked = _names(typed, file_trees)
    env_id, notes = resolve_id(asked), version_notes(asked)
    models = models_of(entry.name)
    layers = Layered()
    layers.lay({name: defaults_of(models[name]) for name in SECTIONS}, Rank.DEFAULT, "default")
    layers.put(("env", "id"), env_id, Rank.DEFAULT, "default")
    if entry.variant:
        layers.lay({"algo": entry.variant}, Rank.VARIANT, f"variant {entry.name}")
    wanted = request.preset or next((t["preset"] for t in file_trees[::-1] if "preset" in t), None)
    preset = pick(entry, env_id, wanted)
    if preset is not None:
        layers.lay(preset.config, Rank.PRESET, f"preset {preset.name}")

    user = Layered()
    for path, file, tree in zip(request.files, files, file_trees, strict=True):
        tree.pop("preset", None)
        for target in (layers, user):
            target.lay(tree, Rank.FILE, partial(file.place, str(path)))
    finder = KeyFinder(models, layers)
    for rank, source in ((Rank.ENVIRONMENT, "LUDUS_* variables"), (Rank.COMMAND, "command line")):
        check_one_length([(key, value) for key, value, _, r in typed if r == rank], source)
    for key_text, value, source, rank in sorted(typed, key=lambda item: item[0] == "frames"):
        if key_text == "frames" and layers.rank(("run", "steps")) > rank:
            continue  # steps from a stronger source win
        lay_protocol(layers)  # short names and frames= need its flags
        key, value = finder.find(key_text, value, source, env_id)
        layers.put(key, value, rank, source)
        user.put(key, value, rank, source)
    named = (("algo", "name"), entry.name), (("env", "id"), env_id), (("run", "imports"), modules)
    for at, known in named:
        if known:
            layers.put(at, known, layers.rank(at), layers.source(at))
    config, sources = sample_hparams(*build(models, layers))
    return Resolved(config, sources, preset.name if preset else None, user.tree, notes)


MODELS: dict[str, type[BaseModel]] = {
    "env": EnvConfig,
    "run": RunConfig,
    "actor": ActorConfig,
    "ray": RayConfig,
    "log": LogConfig,
    "eval": EvalConfig,
}


def models_of(algo: str) -> dict[str, type[BaseModel]]:
    """Return the models of all sections for an algorithm."""
    return {**MODELS, "algo": registry.config_class(algo)}


def build(models: Mapping[str, type[BaseModel]], layers: Layered) -> tuple[Config, dict[str, str]]:
    """Validate every section of a merged tree. Return the config and the source of each value."""
    for name in layers.tree:
        if name not in SECTIONS:
            raise unknown_key((name,), list(SECTIONS), layers.source((name,)))
        if not isinstance(layers.tree[name], Mapping):
            raise not_a_table((name,), layers.tree[name], models[name], layers)
    steps = layers.tree["run"].get("steps")
    if isinstance(steps, str) and steps.startswith("+"):
        raise LudusError(
            "E104",
            f"steps={steps} adds to a run that exists; this one is new",
            where=layers.source(("run", "steps")),
            fix=f"steps={steps[1:]}   or   ludus resume RUN steps={steps}",
        )
    lay_protocol(layers)
    lay_episodes(layers)
    parts = {name: validate(models[name], name, layers) for name in SECTIONS}
    config = Config(**parts)
    learn(config.tree())
    sources = {".".join(key): layers.source(key) for key, _ in leaves(config.tree())}
    return config, sources


def sample_hparams(config: Config, sources: dict[str, str]) -> tuple[Config, dict[str, str]]:
    """Sample the settings that depend on the run's seed (method `sample_hparams` of the algorithm's
    model), once. config.yaml stores the values, and a resumed run keeps them."""
    sample = getattr(config.algo, "sample_hparams", None)
    if sample is None:
        return config, sources
    before, config = config.flat(), config.model_copy(update={"algo": sample(config.run.seed)})
    by = f"sampled by seed {config.run.seed}"
    # A sampled value may be a table (lr.start ...) in place of a plain value.
    now = config.flat()
    kept = {key for key, value in now.items() if (key, value) in before.items()}
    return config, {key: sources[key] if key in kept else by for key in now}


# Values for runs older than a setting, where they differ from its default.
BEFORE: Mapping[str, Any] = {"env": {"integer_scale": "bytes"}}


def from_tree(tree: Mapping[str, Any], where: str) -> Config:
    """Read a configuration that `Config.to_yaml` wrote, without presets. Only secrets are read from
    environment variables. Nothing is imported: use `from_file` to build what it names."""
    registry.load_entry_points(registry.GROUPS)
    algo = tree.get("algo")
    if not isinstance(algo, Mapping) or "name" not in algo:
        raise LudusError(
            "E105",
            f"{where} names no algorithm",
            where=where,
            fix="it must be a resolved config.yaml",
        )
    models = models_of(str(algo["name"]))
    layers = Layered()
    layers.lay({name: defaults_of(models[name]) for name in SECTIONS}, Rank.DEFAULT, "default")
    layers.lay(BEFORE, Rank.DEFAULT, "default")
    layers.lay(tree, Rank.FILE, where)
    for key in [key for key, value in leaves(layers.tree) if is_masked(value)]:
        dotted = ".".join(key)
        name = variable(dotted)
        if name in os.environ:
            value = config_yaml.parse_value(os.environ[name], dotted, name)
            layers.put(key, value, Rank.ENVIRONMENT, name)
    return build(models, layers)[0]


def from_file(tree: Mapping[str, Any], where: str, trust: Trust) -> Config:
    """Read the settings of a run or checkpoint in order to build it. Imports its `run.imports`, or
    `trust.modules` instead. Raises E111 if it refers to code that the user does not allow."""
    if len(json.dumps(tree, default=str, ensure_ascii=False)) > config_yaml.LIMIT:
        raise LudusError(
            "E105",
            f"the settings are larger than {config_yaml.LIMIT:,} bytes",
            where=where,
            why="damage, or a file that was made to fill the memory",
            fix="use the file as it was written",
        )
    tree = trust.import_parts(tree, where)
    cfg = from_tree(trust.with_secrets(tree), where)
    trust.check_code(cfg.tree(), where)  # again, after resolution
    trust.check_values(tree, cfg, where)
    return cfg


def load_config(path: Path | str, trust: Trust = NOTHING, *, follow: bool = False) -> Config:
    """Read a run's config.yaml in order to build it, within `trust`. `follow`: see read_file."""
    return from_file(config_yaml.read_file(Path(path), follow=follow).tree, str(path), trust)


def read_config(path: Path | str, *, follow: bool = False) -> Config:
    """Read a run's config.yaml only to show it. Nothing is imported, and nothing may be built."""
    return from_tree(config_yaml.read_file(Path(path), follow=follow).tree, str(path))


def _normal(tree: dict[str, Any]) -> dict[str, Any]:
    """Expand the short forms `algo: dqn` and `env: CartPole-v1`."""
    tree = dict(tree)
    for section, name in (("algo", "name"), ("env", "id")):
        if isinstance(tree.get(section), str):
            tree[section] = {name: tree[section]}
    return tree


def _names(typed: list[Typed], file_trees: list[dict[str, Any]]) -> tuple[registry.Entry, str]:
    name = _first_name("algo", "name", typed, file_trees)
    if name is None:
        raise LudusError(
            "E106",
            "no algorithm was named",
            where="command line",
            fix="ludus train dqn CartPole-v1   or   algo.name in the file",
        )
    entry = registry.find(str(name))
    env_id = _first_name("env", "id", typed, file_trees)
    if env_id is None:
        raise LudusError(
            "E201",
            "no environment was named",
            where="command line",
            fix=f"ludus train {entry.name} CartPole-v1   or   env.id in the file",
        )
    return entry, str(env_id)


def _first_name(section: str, name: str, typed: list[Typed], files: list[dict[str, Any]]) -> Any:
    """Find the algorithm or environment, which decide the meaning of all other settings."""
    tables = [(section, tree.get(section)) for tree in files]
    given = [(key, table) for key, table in tables if isinstance(table, Mapping)]
    for key, value in reversed([*given, *((key, value) for key, value, _, _ in typed)]):
        if key == section and isinstance(value, Mapping):
            if name in value:
                return value[name]
        elif key in (section, f"{section}.{name}"):
            return value
    return None
