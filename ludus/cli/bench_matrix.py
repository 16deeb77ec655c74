"""`ludus bench SUITE ...`: train a resumable matrix of runs and print a table of results."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ludus.cli.output import print_error, print_json, print_table, say
from ludus.cli.training import Imports, Json, Quiet, RunsDir, runs_root
from ludus.errors import OK, RUN_FAILED, LudusError
from ludus.secret_masking import masked_command

if TYPE_CHECKING:
    from ludus.bench.matrix import Cell, Matrix
    from ludus.bench.plan import BenchRequest


def matrix(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SUITE] KEY=VALUE", help="classic, atari-5, atari57-saber; steps=1M"
        ),
    ] = None,
    envs: Annotated[str | None, typer.Option(help="Environments, such as pong,qbert.")] = None,
    algos: Annotated[
        str | None, typer.Option(help="Algorithms, such as dqn,ppo; all: every one.")
    ] = None,
    seeds: Annotated[str, typer.Option(help="How many, or which: 5 or 1,2,7.")] = "3",
    jobs: Annotated[
        str,
        typer.Option(
            help="Runs at a time, which share the cores; auto: one per core, but only one for "
            "Atari and for runs that start processes."
        ),
    ] = "auto",
    sweep: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=V1,V2", help="Train with each of these values; may be repeated."),
    ] = None,
    preset: Annotated[str | None, typer.Option(help="A preset's name, or none.")] = None,
    untuned: Annotated[
        bool, typer.Option("--untuned", help="Also train pairs without a tuned preset.")
    ] = False,
    name: Annotated[
        str | None, typer.Option(help="Folder of the bench in the runs directory.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the runs and their states, then exit.")
    ] = False,
    runs_dir: RunsDir = None,
    quiet: Quiet = False,
    as_json: Json = False,
    imports: Imports = None,
) -> int:
    """Train algorithms x environments x seeds; the same command again continues the bench.

    SUITE names the environments; without one use --envs.
    """
    from ludus import registry

    registry.import_modules(imports or [])
    from ludus.bench.matrix import merged
    from ludus.bench.plan import auto_jobs, parse_seeds, plan_matrix
    from ludus.envs.ids import version_notes
    from ludus.track.run_dir.lock import RunLock

    request = replace(
        _request(words or [], envs, algos), seeds=parse_seeds(seeds), sweeps=tuple(sweep or ()),
        preset=preset, imports=tuple(imports or ()), untuned=untuned,
    )  # fmt: skip
    folder = _folder(runs_root(runs_dir), name, request)
    planned, configs = plan_matrix(request, folder)
    for note in (note for env in request.envs for note in version_notes(env)):
        print_error(f"warning: {note}")
    number = auto_jobs(configs, len(planned.cells)) if jobs == "auto" else _number(jobs)
    if dry_run:
        whole, cells = merged(planned)
        return _dry_run(whole, cells, number, as_json)
    _make(folder)
    with RunLock(folder):
        whole, cells = merged(planned)
        code = _run(whole, cells, number, quiet or as_json)
        return _finish(whole, cells, code, as_json)


def _request(words: list[str], envs: str | None, algos: str | None) -> BenchRequest:
    """Environments, algorithms and settings; `matrix` adds the other options."""
    from ludus import registry
    from ludus.bench.plan import BenchRequest
    from ludus.bench.suites import find_suite

    names = [word for word in words if "=" not in word]
    if len(names) > 1 or bool(names) == bool(envs):
        what = "both a suite and --envs" if names and envs else "neither a suite nor --envs"
        raise LudusError(
            "E104",
            f"{names[1]!r} is neither suite nor setting" if len(names) > 1 else f"{what} given",
            where="command line",
            fix="ludus bench classic   or   ludus bench --envs CartPole-v1 --algos dqn,ppo",
        )
    suite = find_suite(names[0]) if names else None
    if algos is None and suite is None:
        raise LudusError(
            "E106", "no algorithm was named", where="command line", fix="--algos dqn,ppo"
        )
    asked = suite.algos if suite and algos is None else _names(algos or "", "--algos")
    return BenchRequest(
        suite.envs if suite else _names(envs or "", "--envs"),
        tuple(e.name for e in registry.entries()) if asked == ("all",) else asked,
        settings=tuple(word for word in words if "=" in word),
        suite=suite,
    )


def _names(text: str, option: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise LudusError(
            "E103", f"{option} {text!r} has an empty name in it", where=option,
            fix=f"{option} {','.join(filter(None, names)) or 'A,B'}",
        )  # fmt: skip
    return names


def _number(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 1024:
        raise LudusError(
            "E103", f"--jobs {text}: how many runs at a time, or auto", where="--jobs",
            fix="--jobs 4",
        )  # fmt: skip
    return int(text)


def _folder(root: Path, name: str | None, request: BenchRequest) -> Path:
    """The same command must find the same folder, another command another one."""
    import hashlib

    from ludus.track.run_dir.rundir import check_name, is_run

    if name is None:
        what = [request.envs, tuple(masked_command(request.settings)), request.preset]
        digest = hashlib.sha256(repr(what).encode()).hexdigest()[:6]
        name = request.suite.name if request.suite else f"bench-{digest}"
    folder = root / check_name(name)
    if is_run(folder):
        raise LudusError(
            "E301", f"{folder} is a run, not a bench", where="--name", fix="--name OTHER"
        )
    return folder.resolve()


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LudusError(
            "E301",
            f"cannot create {folder}: {error.strerror or error}",
            where=str(folder),
            fix="choose a writable place with  --runs-dir DIR",
        ) from error


def _run(whole: Matrix, cells: list[Cell], number: int, quiet: bool) -> int:
    from ludus.bench.plan import core_shares, device_shares
    from ludus.bench.progress import make_progress
    from ludus.bench.runner import Runner, Share

    shares = [Share(*pair) for pair in zip(core_shares(number), device_shares(number), strict=True)]
    progress = make_progress(whole, cells, quiet=quiet)
    try:
        for line in _left_out(whole):
            progress.say(line)
        progress.say(f"{len(cells)} runs, {number} at a time, in {whole.folder}")
        return Runner(whole, shares, progress).run(cells)
    finally:
        progress.close()


def _finish(whole: Matrix, cells: list[Cell], code: int, as_json: bool) -> int:
    from ludus.bench.progress import counts
    from ludus.bench.results import rows_of, write_report, write_results

    results = write_results(whole)
    report, why = write_report(whole) if code in (OK, RUN_FAILED) else (None, "stopped")
    if as_json:
        rows = [asdict(row) for row in rows_of(whole.cells)]
        print_json(
            {
                "path": str(whole.folder), "exit_code": code, "results": rows,
                "cells": [asdict(cell) for cell in cells],
                "left_out": whole.left_out, "report": str(report) if report else None,
            }
        )  # fmt: skip
        return code
    _print_results(whole)
    for cell in cells:
        if cell.state == "failed":
            say(f"\n{cell}: failed\n{cell.error}\n  output: {whole.folder}/output/{cell.run}.txt")
    say(f"\n{counts(cells)}\nresults: {results}")
    say(f"report:  {report}" if report else f"report:  none ({why})")
    if all(cell.state == "finished" for cell in cells):
        say(f"next:    ludus compare {whole.folder}")
    else:
        say("next:    the same command again continues, and retries failed runs")
    return code


def _print_results(whole: Matrix) -> None:
    from ludus.bench.results import rows_of

    rows = rows_of(whole.cells)
    columns = ["environment", "algorithm", "runs", "mean", "std", "IQM", "95 % interval"]
    human = any(row.human is not None for row in rows)
    table: list[list[Any]] = []
    for row in rows:
        interval = None if row.low is None else f"{row.low:.4g} to {row.high:.4g}"
        done = f"{row.finished} of {row.runs}"
        name = f"{row.algo} {row.swept}".rstrip()
        cells: list[Any] = [row.env, name, done, row.mean, row.std, row.iqm, interval]
        table.append([*cells, *([row.human] if human else []), row.scored_by])
    print_table([*columns, *(["human"] if human else []), "score is of"], table)


def _left_out(whole: Matrix) -> list[str]:
    """One line for each reason."""
    pairs: dict[str, list[str]] = {}
    for row in whole.left_out:
        pairs.setdefault(row["why"], []).append(f"{row['algo']} on {row['env']}")
    return [f"left out, {why}: {', '.join(found)}" for why, found in pairs.items()]


def _dry_run(whole: Matrix, cells: list[Cell], number: int, as_json: bool) -> int:
    from ludus.bench.progress import outcome

    for cell in cells:
        whole.refresh(cell)
    if as_json:
        plan = {"path": str(whole.folder), "jobs": number, "cells": [asdict(c) for c in cells]}
        print_json({**plan, "left_out": whole.left_out})
        return OK
    print_table(
        ("environment", "algorithm", "seed", "run", "state"),
        [(c.env, c.algo, c.seed, c.run, outcome(c)) for c in cells],
    )
    for line in _left_out(whole):
        say(line)
    say(f"{len(cells)} runs, {number} at a time, in {whole.folder}")
    return OK
