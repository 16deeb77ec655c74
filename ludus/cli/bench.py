"""`ludus bench`: train a matrix of runs (bench_matrix.py), or measure the speed of this machine."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from ludus.cli import bench_matrix
from ludus.cli.output import print_json, print_table, say
from ludus.cli.training import Json, split_words
from ludus.errors import LudusError
from ludus.secret_masking import hide

if TYPE_CHECKING:
    from ludus.settings.resolve import Config

MIN_SECONDS = 0.2  # seconds; less measures only the warm-up
MATRIX = "matrix"
_MEASURED = {  # title -> name; the second last only with --counts
    "environments alone, steps/s": "ceiling_steps_per_second",
    "acting alone, steps/s": "acting_alone_steps_per_second",
    "learner alone, updates/s": "learner_alone_updates_per_second",
    "training, steps/s": "steps_per_second",
    "training, updates/s": "updates_per_second",
    "share of environments alone": "of_ceiling",
    "share of the best ceiling": "of_best_ceiling",
    "updates done / due": "done_of_due",
}


class MatrixUnlessNamed(TyperGroup):
    """`ludus bench classic` is `ludus bench matrix classic`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "-h", "--help"):
            args = [MATRIX, *args]
        return super().parse_args(ctx, args)

    def get_help(self, ctx: Any) -> str:
        """Includes the options of `matrix`, which may be typed without its name."""
        matrix = self.commands[MATRIX]
        inner = type(ctx)(matrix, info_name=MATRIX, parent=ctx)
        return f"{super().get_help(ctx)}\n\n{matrix.get_help(inner)}"


app = typer.Typer(cls=MatrixUnlessNamed, no_args_is_help=True)
app.command(MATRIX)(bench_matrix.matrix)


@app.callback()
def bench() -> None:
    """Train a matrix of runs (`ludus bench classic` is short for `ludus bench matrix classic`), or
    measure how fast this machine trains (`ludus bench speed --help`)."""


@app.command()
def speed(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="ALGO[,ALGO] ENV KEY=VALUE", help="ppo,rainbow-iqn pong"),
    ] = None,
    preset: Annotated[str | None, typer.Option(help="A preset's name, such as atari-fast.")] = None,
    seconds: Annotated[float, typer.Option(help="Duration of each training measurement.")] = 20.0,
    counts: Annotated[
        str,
        typer.Option(
            help="Numbers of environments, such as 16,64, to find the fastest one of this machine; "
            "auto: 2, 4 and 8 per usable core; none: only the run's own."
        ),
    ] = "auto",
    full: Annotated[
        bool, typer.Option("--full", help="Fill the replay with random rows first.")
    ] = False,
    eager: Annotated[
        bool, typer.Option(help="Also measure without captured graphs, on a GPU.")
    ] = True,
    out: Annotated[Path | None, typer.Option(help="Write everything to this JSON file.")] = None,
    as_json: Json = False,
) -> int:
    """Measure environments alone, acting, learning and training, as a share of the environments."""
    import torch

    from ludus.bench.speed import check
    from ludus.settings.resolve import Request, resolve

    algos, env, overrides = split_words(words or [])
    if algos is None or env is None:
        raise LudusError(
            "E101", "bench speed needs an algorithm and an environment",
            fix="ludus bench speed ppo pong",
        )  # fmt: skip
    numbers = _numbers(counts)
    _check_options(seconds, out)
    words = [*overrides, "log.tensorboard=false"]
    # Resolve all of them first: a wrong name should not be found after a measurement.
    configs = [resolve(Request(a, env, words, [], preset)).config for a in _names(algos)]
    for cfg in configs:
        check(cfg, full=full)
    modes = ("auto", "off") if torch.cuda.is_available() and eager else ("auto",)
    for result in _measured(configs, numbers, seconds=seconds, modes=modes, full=full):
        if out is not None:  # at once: a later one may fail
            _write(out, result)
        if not as_json:
            _show(result["runs"][-1])
    if as_json:
        print_json(result)
    elif "best" in result:
        _show_best(result["best"])
    return 0


def _names(algos: str) -> list[str]:
    """ppo,rainbow-iqn -> [ppo, rainbow-iqn]"""
    names = [name.strip() for name in algos.split(",")]
    if not all(names):
        there = ",".join(filter(None, names))
        raise LudusError(
            "E106", f"an empty name among the algorithms {algos!r}", where="command line",
            fix=f"ludus bench speed {there or 'ppo'} ...",
        )  # fmt: skip
    return names


def _check_options(seconds: float, out: Path | None) -> None:
    if not MIN_SECONDS <= seconds < math.inf:
        raise LudusError(
            "E103", f"--seconds {seconds:g} is too short to measure anything, or endless",
            where="--seconds", why=f"it must be {MIN_SECONDS} or more", fix="--seconds 20",
        )  # fmt: skip
    if out is not None and out.is_dir():
        raise LudusError(
            "E301", f"{out} is a directory", where="--out", fix=f"--out {out / 'speed.json'}"
        )
    if out is not None and not out.parent.is_dir():
        raise LudusError(
            "E301", f"no directory {out.parent} to write {out.name} into", where=str(out),
            fix=f"mkdir -p {out.parent}",
        )  # fmt: skip
    if out is not None and not os.access(out if out.exists() else out.parent, os.W_OK):
        raise LudusError(
            "E301", f"{out} may not be written", where="--out", fix="--out another/place.json"
        )


def _write(out: Path, result: dict[str, Any]) -> None:
    try:
        out.write_text(json.dumps(hide(result), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise LudusError(
            "E301", f"cannot write {out}: {error.strerror or error}", where="--out",
            fix="free some space, or choose another place with  --out",
        ) from error  # fmt: skip


def _measured(
    configs: list[Config], numbers: list[int] | None, **how: Any
) -> Iterator[dict[str, Any]]:
    """The results so far, after each measurement."""
    from ludus.bench.ceilings import add_share_of_best, best_ceiling, default_counts, with_counts
    from ludus.bench.speed import machine, measure

    first, announce = configs[0], partial(say, flush=True)
    numbers = default_counts(first.env) if numbers is None else numbers
    with_counts(first.env, numbers)
    result: dict[str, Any] = {"machine": machine(), "runs": []}
    for cfg in configs:
        with contextlib.redirect_stdout(sys.stderr):  # progress, and the output of the runs
            run = measure(cfg, say=announce, **how)
            if numbers and cfg is first:  # afterwards: the run may fail
                result["best"] = best_ceiling(cfg, numbers, how["seconds"] / 2, announce)
        if "best" in result:
            add_share_of_best(run, result["best"])
        result["runs"].append(run)
        yield result


def _numbers(text: str) -> list[int] | None:
    """16,64 -> [16, 64]; none -> []; None for auto"""
    if text == "auto":
        return None
    try:
        found = [int(part) for part in text.split(",")] if text not in ("", "none") else []
    except ValueError:
        found = [0]
    if any(n < 1 for n in found):
        raise LudusError(
            "E103", f"--counts {text}: numbers of environments, such as 16,64,128",
            where="--counts", fix="ludus bench speed ppo pong --counts 16,64,128",
        )  # fmt: skip
    return found


def _show(run: dict[str, Any]) -> None:
    modes = run["modes"].values()
    names = ("device", "precision", "updates", "acting", "overlap", "replay", "compile")
    facts = [[k, *(str(m["compute"][k]) for m in modes)] for k in names]
    rows = [row for row in facts if any(row[1:])]  # skip what is empty in all modes
    for title, key in _MEASURED.items():
        if all(key in mode for mode in modes):
            form = ",.0f" if key.endswith("per_second") else ".3f"
            rows.append([title, *(format(mode[key], form) for mode in modes)])
    head = f"{run['algo']} on {run['env']}: {run['envs']} environments in {run['groups']} groups"
    say(f"{head}, {run['threads']} threads, built in {run['build_seconds']:.1f} s")
    print_table(["", *run["modes"]], rows)


def _show_best(best: dict[str, float]) -> None:
    count, rate = max(best.items(), key=lambda item: item[1])
    tried = f"of {', '.join(best)} environments, {count} were fastest alone"
    say(f"best ceiling here: {rate:,.0f} steps/s; {tried}")
