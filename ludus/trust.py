"""Code that a file names: refused unless the user names it too.

A run, a checkpoint or a model.safetensors may come from a stranger, and importing a module runs it.
Settings that were typed, written in Python or in a file given by -c are the user's own and never
come here. How files are read is no concern of this one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any

from ludus import registry
from ludus.config_imports import imports_in
from ludus.errors import LudusError
from ludus.masking import is_masked, masked
from ludus.modules import import_named

if TYPE_CHECKING:
    from ludus.config import Config

WRITERS = ("RecordVideo",)  # wrappers of gymnasium that write files
LONGEST = 80  # characters of a name that are shown


@dataclass(frozen=True)
class Trust:
    """What the user vouches for, now."""

    modules: tuple[str, ...] = ()  # --import, imports=[...]: with all modules inside them
    whole: bool = False  # --trust, trust=True: everything that the file names
    command: str = ""  # that was typed, for the message; empty: from Python

    def import_parts(self, tree: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        """Import what a run was started with, or the modules that were named now in its place: one
        may have moved. The settings, with the `run.imports` that hold."""
        run = tree.get("run", {})
        if self.modules and isinstance(run, Mapping):
            tree = {**tree, "run": {**run, "imports": list(self.modules)}}
        self.check_code(tree, where)
        source = "--import" if self.modules else f"run.imports of {where}"
        registry.import_modules(imports_in(tree), where=source)
        return tree

    def check_code(self, tree: Mapping[str, Any], where: str) -> None:
        """Refuse modules that the user did not name."""
        named = dict(code_in(tree))
        strange = [name for name in named if not self.allows(name)]
        if strange:
            modules = dict.fromkeys(name.partition(":")[0] for name in strange)
            raise LudusError(
                "E111",
                f"{where} names code that you did not name: {', '.join(map(shown, strange))}",
                where=", ".join(dict.fromkeys(named[name] for name in strange)),
                why="the file may come from a stranger, and a module that is imported can do "
                "anything",
                fix=self._fix(list(modules)),
            )

    def check_values(self, cfg: Config, where: str) -> None:
        """Refuse what a registered environment or wrapper could be misused with."""
        if self.whole:
            return
        found = [("env.args", text) for text in places_in(masked(cfg.env.args))]
        for wrapper in cfg.env.wrappers:
            found += [("env.wrappers", text) for text in places_in(masked(wrapper.options))]
            found += [("env.wrappers", name) for name in WRITERS if wrapper.name == name]
        for key, text in found:
            raise LudusError(
                "E111",
                f"{where} gives a place to read or write: {shown(text)}",
                where=key,
                why="the file may come from a stranger; a path, an address or the name of code is "
                "not passed on to an environment",
                fix=self._fix(),
            )
        for name in [cfg.env.id] if ":" in cfg.env.id else []:
            module, _, attribute = name.partition(":")
            if isinstance(getattr(import_named(module), attribute, None), FunctionType):
                raise LudusError(
                    "E111",
                    f"{where} names a function as the environment: {shown(name)}",
                    where="env.id",
                    why="--import lets a file use the classes of a module, not call its functions",
                    fix=self._fix(),
                )

    def allows(self, name: str) -> bool:
        module = name.partition(":")[0]
        return self.whole or any(module == m or module.startswith(f"{m}.") for m in self.modules)

    def _fix(self, modules: Sequence[str] = ()) -> str:
        """What to type, if the code is the user's own. A name that is none is not repeated."""
        modules = [m for m in modules if all(part.isidentifier() for part in m.split("."))]
        if self.command:
            first = " ".join([self.command, *(f"--import {module}" for module in modules)])
            whole = f"{self.command} --trust"
        else:
            first, whole = f"imports={modules}", "trust=True"
        ways = f"{first}   or, for all that it names,   {whole}" if modules else whole
        return f"if you trust it:  {ways}"


NOTHING = Trust()


def code_in(tree: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(name, key) of every module and module:name in the settings of a file."""
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
    """The modules that settings of the user's own name."""
    return tuple(dict.fromkeys(name.partition(":")[0] for name, _ in code_in(tree)))


def places_in(value: Any) -> Iterator[str]:
    """Texts, however deep, that could be a path, an address or module:name."""
    if isinstance(value, str):
        if is_masked(value):  # not used as it is: the user gives it again
            return
        if value.startswith(("~", ".")) or any(sign in value for sign in "/\\:"):
            yield value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from places_in(str(key))
            yield from places_in(part)
    elif isinstance(value, list | tuple | set):
        for part in value:
            yield from places_in(part)


def shown(text: str) -> str:
    """A text from a file as it may be printed: short, and nothing that a terminal obeys."""
    plain = text.encode("unicode_escape").decode("ascii")
    return plain if len(plain) <= LONGEST else f"{plain[:LONGEST]}..."
