"""Verbs that explain: list, show, config schema|diff, check, help."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ludus import registry
from ludus.cli.explain import EXPLAIN
from ludus.cli.output import print_json, print_table, say
from ludus.cli.training import Imports, Json, runs_root
from ludus.errors import CODES, USER_ERROR, LudusError, nearest

if TYPE_CHECKING:
    from ludus.presets import Preset

config_app = typer.Typer(
    rich_markup_mode=None,
    help="Schema of the configuration, and differences between two.",
    no_args_is_help=True,
)


def list_things(
    what: Annotated[
        Literal["algos", "envs", "presets", "agents"], typer.Argument(help="What to list.")
    ],
    as_json: Json = False,
    imports: Imports = None,
) -> None:
    """List algorithms, environments, presets, or the trained agents that come with ludus."""
    registry.import_modules(imports or [])
    from ludus.agents import describe_agents

    kinds = {"algos": _algos, "envs": _envs, "presets": _presets, "agents": describe_agents}
    rows = kinds[what]()
    if as_json:
        print_json(rows)
    elif rows:
        if what == "presets":  # `ludus show ALGO` has the full text
            rows = [{**row, "source": first_sentence(row["source"])} for row in rows]
        print_table(list(rows[0]), [list(row.values()) for row in rows])
    else:
        say(f"no {what}")


def _algos() -> list[dict[str, Any]]:
    return [
        {"name": e.name, "actions": ", ".join(e.actions), "paper": e.paper, "summary": e.summary}
        for e in registry.entries()
    ]


def _envs() -> list[dict[str, Any]]:
    registry.load_entry_points(registry.GROUPS)
    import gymnasium

    from ludus.envs.make import known_ids

    rows = []
    for name in known_ids():
        made = gymnasium.registry.get(name)
        ours = "ale_py" if name.startswith("ALE/") else "ludus.envs.test_envs"
        point = made.entry_point if made is not None else ours
        module = (
            point.partition(":")[0] if isinstance(point, str) else getattr(point, "__module__", "")
        )
        limit = made.max_episode_steps if made is not None else None
        rows.append({"id": name, "package": module, "max_episode_steps": limit})
    return rows


def _presets() -> list[dict[str, Any]]:
    from ludus.presets import all_presets

    return [
        {"algo": p.algo, "name": p.name, "match": ", ".join(p.match), "source": p.source}
        for p in all_presets()
    ]


def first_sentence(text: str) -> str:
    """Up to a full stop before a capital letter: "et al. 2015" is no end."""
    return re.split(r"(?<=\.)\s+(?=[A-Z])", " ".join(text.split()), maxsplit=1)[0]


def show(
    algo: Annotated[str, typer.Argument(metavar="ALGO")],
    as_json: Json = False,
    imports: Imports = None,
) -> None:
    """Explain an algorithm: paper, settings, presets."""
    registry.import_modules(imports or [])
    entry = registry.find(algo)
    from ludus.presets import presets_of
    from ludus.settings.errors import validate
    from ludus.settings.layers import Layered, Rank, defaults_of, leaves, plain

    schema, layers = registry.locate(entry.config), Layered()
    layers.lay(defaults_of(schema), Rank.DEFAULT, "default")
    layers.lay(entry.variant, Rank.VARIANT, f"variant {entry.name}")
    # Validation fills in what a variant's own kinds leave open (atoms, quantiles ...).
    settings = validate(schema, "algo", Layered({"algo": {**layers.tree, "name": entry.name}}))
    rows = [
        (".".join(("algo", *key)), value, layers.source(key))
        for key, value in leaves(plain(settings))
        if key != ("name",)
    ]
    presets = presets_of(entry)
    if as_json:
        named = {n: getattr(entry, n) for n in ("name", "summary", "paper", "family", "actions")}
        values = {key: value for key, value, _ in rows}
        tuned = [{"name": p.name, "match": p.match, "source": p.source} for p in presets]
        print_json({**named, "code": entry.module, "settings": values, "presets": tuned})
        return
    say(f"{entry.name}: {entry.summary}\npaper    {entry.paper or '-'}")
    say(f"actions  {', '.join(entry.actions)}\ncode     {entry.module}")
    _print_presets(presets)
    print_table(("setting", "value", "source"), rows)


def _print_presets(presets: list[Preset]) -> None:
    """Names, environments, and the full source of the numbers."""
    say("presets" if presets else "presets  none")
    for preset in presets:
        say(f"  {preset.name} ({', '.join(preset.match) or 'a base of others'})")
        source = " ".join(preset.source.split())
        say(textwrap.indent(textwrap.fill(source, 92, break_on_hyphens=False), "    "))
    say()


@config_app.command("schema")
def schema(
    algo: Annotated[str | None, typer.Argument(metavar="[ALGO]", help="Default: all.")] = None,
    imports: Imports = None,
) -> None:
    """Print the JSON schema of a configuration file, for editors."""
    registry.import_modules(imports or [])
    from ludus.settings.json_schema import json_schema

    print_json(json_schema(algo))


@config_app.command("diff")
def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="A run, or a resolved config.yaml.")],
    b: Annotated[Path, typer.Argument(metavar="B")],
    as_json: Json = False,
    runs_dir: Annotated[
        Path | None, typer.Option(help="Folder of the runs; default: ./runs.")
    ] = None,
    imports: Imports = None,
) -> int:
    """Show the differences between two runs' configurations; exit code 1 if there are any."""
    registry.import_modules(imports or [])
    from ludus.settings.resolve import read_config
    from ludus.settings.resume import differences
    from ludus.track.run_dir.rundir import RunDir

    root = runs_root(runs_dir)
    read = [
        read_config(p, follow=True) if p.is_file() else read_config(RunDir.open(p, root).config)
        for p in (a, b)
    ]
    found = differences(*read)
    if as_json:
        print_json([{"key": key, "a": x, "b": y} for key, x, y in found])
    elif found:
        print_table(("key", str(a), str(b)), found)
    else:
        say("no difference")
    return USER_ERROR if found else 0


def check(
    target: Annotated[str, typer.Argument(metavar="ENV", help="An id, or module:Class.")],
    as_json: Json = False,
    imports: Imports = None,
) -> int:
    """Check an environment and explain its problems."""
    registry.import_modules(imports or [])
    from ludus.envs.check import check_env

    findings = check_env(target)
    bad = any(f.level == "error" for f in findings)
    if as_json:
        print_json([{"level": f.level, "text": f.text, "fix": f.fix} for f in findings])
    else:
        for f in findings:
            say(f"{f.level:<8}{f.text}" + (f"\n        fix: {f.fix}" if f.fix else ""))
        say(f"{target} {'has errors' if bad else 'is usable'}")
    return USER_ERROR if bad else 0


def help_code(
    code: Annotated[str | None, typer.Argument(metavar="[CODE]", help="E101, E203 ...")] = None,
) -> None:
    """Explain an error code; without CODE, list them all."""
    if code is None:
        print_table(("code", "meaning"), CODES.items())
        return
    code = code.upper()
    if code not in CODES:
        raise LudusError(
            "E103",
            f"there is no code {code}{nearest(code, CODES)}",
            where="command line",
            fix="ludus help  lists them all",
        )
    why, fix = EXPLAIN[code]
    say(f"{code}  {CODES[code]}\n\n  likely  {why}\n  do      {fix}")
