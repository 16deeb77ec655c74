"""Refuse code that a file refers to, unless the user allows it.

A run, a checkpoint or a model.safetensors may come from a stranger, and importing a module runs
its code. Settings that the user typed, wrote in Python or passed with -c are not checked here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

from ludus import registry
from ludus.errors import LudusError
from ludus.process.modules import import_named
from ludus.secret_masking import is_masked, masked
from ludus.settings.keys import split_override
from ludus.settings.layers import Layered, Rank
from ludus.settings.sections import FLEETS

if TYPE_CHECKING:
    from ludus.settings.resolve import Config

WRITERS = ("RecordVideo",)  # wrappers of gymnasium that write files
WINDOW = "HumanRendering"  # and the one that opens a window
PICTURES = (None, "rgb_array", "rgb_array_list", "depth_array", "ansi", "ansi_list")
LONGEST = 80  # characters of a name that are shown


@dataclass(frozen=True)
class Trust:
    """The code and secrets that the user allows a file to use."""

    modules: tuple[str, ...] = ()  # --import, imports=[...]; includes their submodules
    whole: bool = False  # --trust, trust=True: everything that the file refers to
    command: str = ""  # the typed command, for messages; empty: from Python
    secrets: Mapping[str, Any] = field(default_factory=dict)  # args and wrappers, typed again

    def import_parts(self, tree: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        """Import the modules of the run, or `self.modules` instead, since a module may have moved.
        Return the settings with the `run.imports` in use."""
        run = tree.get("run", {})
        if self.modules and isinstance(run, Mapping):
            tree = {**tree, "run": {**run, "imports": list(self.modules)}}
        self.check_code(tree, where)
        source = "--import" if self.modules else f"run.imports of {where}"
        registry.import_modules(imports_in(tree), where=source)
        return tree

    def with_secrets(self, tree: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the settings of a file with the secrets of `env` that the user typed again."""
        env = tree.get("env")
        if not self.secrets or not isinstance(env, Mapping):
            return tree
        return {**tree, "env": _filled(env, self.secrets)}

    def check_code(self, tree: Mapping[str, Any], where: str) -> None:
        """Refuse modules that the user did not allow."""
        named = dict(code_in(tree))
        strange = [name for name in named if not self.allows(name)]
        if strange:
            modules = dict.fromkeys(name.partition(":")[0] for name in strange)
            parts = [name for name in strange if ":" in name]
            parts += [m for m in modules if not any(name.startswith(f"{m}:") for name in parts)]
            raise LudusError(
                "E111",
                f"{_owner(where)} refers to code you have not allowed: "
                f"{', '.join(map(shown, parts))}",
                where=", ".join(dict.fromkeys(named[name] for name in strange)),
                why="the file may come from a stranger, and a module that is imported can do "
                "anything",
                fix=self._fix(list(modules)),
            )

    def check_values(self, tree: Mapping[str, Any], cfg: Config, where: str) -> None:
        """Refuse values that could misuse an environment or wrapper. `tree`: the settings of the
        file, without the user's secrets; `cfg`: the resolved settings."""
        found = () if self.whole else (*_misuses(tree.get("env"), cfg), *_joins(cfg))
        for key, what, why in found:
            what = f"{_owner(where)} {what}"
            raise LudusError("E111", what, where=key, why=why, fix=self._fix())

    def allows(self, name: str) -> bool:
        module = name.partition(":")[0]
        return self.whole or any(module == m or module.startswith(f"{m}.") for m in self.modules)

    def _fix(self, modules: Sequence[str] = ()) -> str:
        """Return the text to type if the user trusts the code, without malformed module names."""
        modules = [module for module in modules if _is_module(module)]
        if self.command:
            first = " ".join([self.command, *(f"--import {module}" for module in modules)])
            whole = f"{self.command} --trust"
        else:
            first, whole = f"imports={modules}", "trust=True"
        ways = f"{first}   or, for all that it refers to,   {whole}" if modules else whole
        return f"if you trust it:  {ways}"


NOTHING = Trust()


def _owner(where: str) -> str:
    """Return the run that contains a file, or the file itself."""
    path = Path(where)
    if path.name not in ("state.json", "config.yaml"):
        return where
    folder = path.parent
    inside = folder.parent.name == "checkpoints"
    return str(folder.parent.parent if inside else folder)


def flags_for(tree: Mapping[str, Any], whole: bool = False) -> str:
    """Return the flags that a command needs to use the user's own run: --import for each module, or
    --trust if `whole`. Malformed names are omitted."""
    if whole:
        return " --trust"
    return "".join(f" --import {module}" for module in modules_in(tree) if _is_module(module))


def names_cluster(tree: Mapping[str, Any]) -> bool:
    """Whether the actors of a run with these settings are on a cluster that they name, which needs
    --trust. The settings may be damaged."""
    run, at = tree.get("run"), tree.get("ray")
    if not (isinstance(run, Mapping) and isinstance(at, Mapping)):
        return False
    fleet = FLEETS.get(str(run.get("fleet")))
    return fleet is not None and fleet.on_cluster and any(map(at.get, ("address", "key_file")))


def needs_whole(cfg: Config) -> bool:
    """Whether the user's own run needs --trust, because --import is not enough."""
    try:
        tree = masked(cfg.tree())  # as files have it
        Trust(modules_in(tree)).check_values(tree, cfg, "")
    except LudusError:
        return True
    return False


def _is_module(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def imports_in(tree: Mapping[str, Any]) -> list[str]:
    """Return `run.imports` of a tree; empty if it is malformed, which validation reports."""
    table = tree.get("run")
    names = table.get("imports") if isinstance(table, Mapping) else None
    listed = list(names) if isinstance(names, list | tuple) else []
    return listed if all(isinstance(name, str) for name in listed) else []


def import_asked(typed: Sequence[tuple[str, Any]], files: Sequence[Mapping[str, Any]]) -> list[str]:
    """Import all modules that files and the command line name, in order, and return their names.

    Call it before looking up any name, because the modules register algorithms and parts.
    """
    trees = [*files, *({"run": value} for key, value in typed if key == "run")]
    trees += [{"run": {"imports": v}} for k, v in typed if k in ("imports", "run.imports")]
    names = list(dict.fromkeys(name for tree in trees for name in imports_in(tree)))
    registry.import_modules(names)
    return names


def code_in(tree: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (name, key) of every module and module:name in the settings of a file."""
    for name in imports_in(tree):
        yield name, "run.imports"
    env = tree.get("env")
    if not isinstance(env, Mapping):
        return
    wrappers = env.get("wrappers")
    listed = wrappers if isinstance(wrappers, list | tuple) else []
    names: list[tuple[str, Any]] = [("env.id", env.get("id"))]
    names += [("env.wrappers", w.get("name")) for w in listed if isinstance(w, Mapping)]
    for key, name in names:
        if isinstance(name, str) and ":" in name:
            yield name, key


def modules_in(tree: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the modules that the user's settings name."""
    return tuple(dict.fromkeys(name.partition(":")[0] for name, _ in code_in(tree)))


def secrets_typed(settings: Iterable[str | tuple[str, Any]]) -> dict[str, Any]:
    """Return the environment and wrapper arguments in some settings, for `Trust.secrets`."""
    layers = Layered()
    for item in settings:
        key, value = split_override(item) if isinstance(item, str) else item
        parts = tuple(key.split("."))
        parts = parts if parts[0] == "env" else ("env", *parts)
        if parts == ("env",) or parts[1] in ("args", "wrappers"):
            layers.put(parts, value, Rank.COMMAND, "command line")
    env = layers.tree.get("env")
    return {k: env[k] for k in ("args", "wrappers") if k in env} if isinstance(env, dict) else {}


def _filled(stored: Any, typed: Any) -> Any:
    """Replace the masks in a value of a file by the typed values."""
    if isinstance(stored, Mapping) and isinstance(typed, Mapping):
        names = {masked(str(name)): name for name in typed}
        found = {key: names.get(key, key) if is_masked(key) else key for key in stored}
        return {name: _filled(stored[key], typed.get(name)) for key, name in found.items()}
    masks = not isinstance(stored, Mapping) and is_masked(stored)
    return typed if masks and typed is not None else stored


def _misuses(env: Any, cfg: Config) -> Iterator[tuple[str, str, str]]:
    """Yield (key, what the file does, why that is refused) of suspicious values of `env`."""
    env = env if isinstance(env, Mapping) else {}
    wrappers = env.get("wrappers")
    listed = wrappers if isinstance(wrappers, list | tuple) else [wrappers]
    options = [wrapper.get("options") for wrapper in listed if isinstance(wrapper, Mapping)]
    places = [("env.args", text) for text in places_in(env.get("args"))]
    places += [("env.wrappers", text) for text in places_in(options)]
    places += [("env.wrappers", w.name) for w in cfg.env.wrappers if w.name in WRITERS]
    for key, text in places:
        yield (
            key,
            f"contains a path, an address or the name of code: {shown(text)}",
            "the file may come from a stranger, and an environment could read or write there",
        )
    windows = ["env.args.render_mode"] if cfg.env.args.get("render_mode") not in PICTURES else []
    for key in windows + ["env.wrappers" for w in cfg.env.wrappers if w.name == WINDOW]:
        yield (
            key,
            "opens a window, or plays at the speed of one",
            "a file does not decide what is shown;  ludus play  shows an agent",
        )
    module, sign, name = cfg.env.id.partition(":")
    if sign and isinstance(getattr(import_named(module), name, None), FunctionType):
        yield (
            "env.id",
            f"calls a function to make its environment: {shown(cfg.env.id)}",
            "--import lets a file use the classes of a module, not call its functions",
        )


def _joins(cfg: Config) -> Iterator[tuple[str, str, str]]:
    """Yield (key, what the file does, why that is refused) of a cluster that the file names."""
    for key, value in (("address", cfg.ray.address), ("key_file", cfg.ray.key_file)):
        if value and cfg.run.capabilities.on_cluster:
            yield (
                f"ray.{key}",
                f"names a Ray cluster or its token: {shown(value)}",
                "whoever has the cluster gets the token, and can run programs on this machine",
            )


def places_in(value: Any) -> Iterator[str]:
    """Yield nested texts that could be a path, an address or module:name."""
    if isinstance(value, str):
        if is_masked(value):  # not used as it is: the user gives it again
            return
        if value.startswith(("~", ".")) or any(sign in value for sign in "/\\:"):
            yield value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from places_in(str(key))
            yield from places_in(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from places_in(part)
    elif not isinstance(value, bool | int | float | None):
        yield repr(value)  # bytes and other types with unknown content


def shown(text: str) -> str:
    """Shorten a text from a file and escape control characters, for printing."""
    plain = text.encode("unicode_escape").decode("ascii")
    return plain if len(plain) <= LONGEST else f"{plain[:LONGEST]}..."
