"""`ludus compare`: compare the scores of runs. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ludus.cli.output import print_json, print_table, say
from ludus.cli.runs import warn_about
from ludus.cli.training import Json, RunsDir, runs_root
from ludus.errors import LudusError

if TYPE_CHECKING:
    from ludus.stats.runs import Run
    from ludus.track.run_dir.rundir import RunDir


def compare(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Runs, or folders of runs.")],
    runs_dir: RunsDir = None,
    as_json: Json = False,
) -> None:
    """Compare runs: score, IQM and interval over seeds, and the probability of improvement."""
    from ludus.stats.compare import compare as compared
    from ludus.track.run_dir.rundir import find_runs

    found = compared(_readable(find_runs(runs, runs_root(runs_dir))))
    if as_json:
        print_json(found)
        return
    for number, env in enumerate(found["environments"]):
        if number:
            say()
        _print_environment(env)
    if found["overall"] is not None:
        _print_overall(found["overall"])


def _readable(runs: list[RunDir]) -> list[Run]:
    """Runs that can be read, with a warning about each other one; E303 if none is left."""
    from ludus.stats.runs import read_run

    found, refused = [], None
    for run in runs:
        try:
            found.append(read_run(run))
            warn_about(run)
        except LudusError as error:
            refused = error
            warn_about(run, f"left out, {error.why}")
    if refused is not None and not found:
        raise refused
    return found


def _print_environment(env: dict[str, Any]) -> None:
    rules = f" ({', '.join(env['protocols'])})" if env["protocols"] else ""
    say(f"{env['env']}{rules}")
    groups = env["algorithms"]
    columns = ["algorithm", "seeds", "score", "IQM", "95 % interval"]
    normal = any(group["human_normalized"] is not None for group in groups)
    rows = []
    for group in groups:
        row = [group["label"], len(group["seeds"]), group["score"], group["iqm"]]
        row += [_ends(group["interval"])]
        row += [group["human_normalized"], group["record_normalized"]] if normal else []
        rows.append([*row, group["from"]])
    print_table([*columns, *(["human", "record"] if normal else []), "score is of"], rows)
    for pair in env["improvement"]:
        ends = f"  {_ends(pair['interval'])}" if pair["interval"] else ""
        say(f"P({pair['x']} > {pair['y']}) = {pair['probability']:.2f}{ends}")
    _print_warnings(env["warnings"])


def _print_overall(overall: dict[str, Any]) -> None:
    say(f"\n{len(overall['games'])} games, human-normalised")
    names = ("mean", "median", "iqm", "optimality_gap")
    rows = []
    for row in overall["algorithms"]:
        cells = (f"{row[n]['value']:.3g} {_ends(row[n]['interval'])}".strip() for n in names)
        rows.append([row["label"], row["seeds"], *cells])
    if rows:
        print_table(("algorithm", "seeds", "mean", "median", "IQM", "optimality gap"), rows)
    _print_warnings(overall["warnings"])


def _ends(interval: tuple[float, float] | None) -> str:
    return "-" if interval is None else f"[{interval[0]:.4g}, {interval[1]:.4g}]"


def _print_warnings(warnings: list[str]) -> None:
    for text in warnings:
        say(f"warning: {text}")
