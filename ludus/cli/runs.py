"""Verbs for existing runs: ls, status, logs, stop. None of them imports torch.

Imports are inside the functions, because `ludus --help` imports this file too.
"""

from __future__ import annotations

import io
import os
import shlex
import signal
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ludus.cli.output import cell_text, print_json, print_table, say, warn
from ludus.cli.training import Json, RunsDir, runs_root
from ludus.errors import LudusError, nearest

if TYPE_CHECKING:
    from pathlib import Path

    from ludus.track.run_dir.rundir import RunDir

Name = Annotated[str, typer.Argument(metavar="RUN", help="A run's directory or name.")]
_COLUMNS = (
    "name", "tag", "algo", "env", "protocol", "seed", "state", "step", "steps", "score", "speed",
    "age",
)  # fmt: skip

_LOG = 16 << 20  # bytes at the end of a log that are printed
_TITLES = {"score": "training score"}  # of an agent that explores, unlike the score of `eval`


def problem_of(run: RunDir, *others: str) -> str:
    """Problems with status.json and the folder of checkpoints in one line, after `others`."""
    from ludus.track.atomic_files import check_folder, reason
    from ludus.track.run_dir.status import read_status

    found = [*others, read_status(run).get("problem", "")]
    try:
        if os.path.lexists(run.checkpoints):
            check_folder(run.checkpoints)
    except OSError as error:
        found.append(f"{run.checkpoints.name}: {reason(error)}")
    return "; ".join(text for text in found if text)


def warn_about(run: RunDir, *others: str) -> None:
    if problem := problem_of(run, *others):
        warn(f"{run.name}: {problem}")


def describe(run: RunDir) -> dict[str, Any]:
    """A run from its files: settings, progress, and whether it is alive."""
    from ludus.stats.run_files import read_settings, table
    from ludus.track.checkpoint.format import checkpoint_paths, read_pointer
    from ludus.track.run_dir.lock import holder
    from ludus.track.run_dir.status import read_status

    tree, unread = read_settings(run)
    algo, env, settings = (table(tree, name) for name in ("algo", "env", "run"))
    current, owner = read_status(run), holder(run.path)
    found = {
        "name": run.name,
        "path": str(run.path),
        "tag": current.get("tag"),
        "algo": _text(algo.get("name")),
        "env": _text(env.get("id")),
        "protocol": current.get("protocol"),  # with a star if a rule differs
        "protocol_hash": current.get("protocol_hash"),
        "seed": _count(settings.get("seed")),
        "steps": _count(settings.get("steps")),
        "state": current["state"],
        "step": current.get("step"),
        "updates": current.get("updates"),
        "score": current.get("score"),
        "speed": current.get("steps_per_second"),
        "pid": owner.pid if owner else None,
        "host": owner.host if owner else None,
        "seconds_ago": max(0.0, time.time() - _changed(run)),
        "checkpoints": list(checkpoint_paths(run.checkpoints)),
        "last": read_pointer(run.checkpoints, "last"),
        "best": read_pointer(run.checkpoints, "best"),
    }
    problem = problem_of(run, unread)
    return {**found, "problem": problem} if problem else found


def _changed(run: RunDir) -> float:
    """When its files were last written."""
    times = [0.0]
    for path in (run.status, run.path):
        with suppress(OSError):
            times.append(path.lstat().st_mtime)
    return max(times)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and abs(value) < 10**40 else None


def ls(
    runs_dir: RunsDir = None,
    sort: Annotated[str, typer.Option(help="By a column: age, score, step, name ...")] = "age",
    as_json: Json = False,
) -> None:
    """List runs, the newest last."""
    from ludus.track.run_dir.rundir import list_runs

    if sort not in _COLUMNS:
        raise LudusError(
            "E103",
            f"cannot sort by {sort}{nearest(sort, _COLUMNS)}",
            where="command line",
            fix=f"one of: {', '.join(_COLUMNS)}",
        )
    found = [describe(run) for run in list_runs(runs_root(runs_dir))]
    if sort == "age":
        found.sort(key=lambda r: -float(r["seconds_ago"]))
    else:
        found.sort(key=lambda r: (r[sort] is not None, r[sort] if r[sort] is not None else 0))
    none = f"no runs in {runs_root(runs_dir)}; start one:  ludus train dqn CartPole-v1"
    _print_all(found, as_json, none)


def _print_all(found: list[dict[str, Any]], as_json: bool, none: str) -> None:
    if as_json:
        print_json(found)
    elif found:
        _print_runs(found)
    else:
        say(none)


def _print_runs(found: list[dict[str, Any]]) -> None:
    """Without the columns for tags and protocols if no run has one."""
    empty = {name for name in ("tag", "protocol") if not any(r[name] for r in found)}
    columns = [name for name in _COLUMNS if name not in empty]
    print_table([_TITLES.get(name, name) for name in columns], [_row(r, columns) for r in found])
    for run in found:
        if run.get("problem"):
            warn(f"{run['name']}: {run['problem']}")


def _row(found: dict[str, Any], columns: list[str]) -> list[Any]:
    from ludus.units import show_count, show_seconds

    shown = {**found, "age": show_seconds(found["seconds_ago"]), "state": _state(found)}
    for name in ("step", "steps", "speed"):
        shown[name] = None if shown[name] is None else show_count(float(shown[name]))
    return [shown[name] for name in columns]


def _state(found: dict[str, Any]) -> str:
    """The state for people: a run that learned nothing is not simply finished."""
    state = str(found["state"])
    return f"{state}, 0 updates" if state == "finished" and found["updates"] == 0 else state


def status(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Default: all running ones.")
    ] = None,
    runs_dir: RunsDir = None,
    as_json: Json = False,
) -> None:
    """Show the state of a run; without RUN, of every run that is alive."""
    from ludus.track.atomic_files import read_json
    from ludus.track.run_dir.rundir import RunDir, list_runs

    if run is None:
        alive = [r for r in map(describe, list_runs(runs_root(runs_dir))) if r["pid"] is not None]
        return _print_all(alive, as_json, "nothing is running")
    place = RunDir.open(run, runs_root(runs_dir))
    found = {**read_json(place.status), **describe(place)}
    found["resume"], flags = _resume(place)  # the run may have been moved
    if flags:
        found["caution"] = f"{flags} runs code that the run names: only if you trust it"
    if found["pid"] is None:  # outdated
        found.pop("actors", None)
        found.pop("replay_roles", None)
    if found["last"] is None:  # there is nothing to resume from
        del found["resume"]
        found.pop("caution", None)
    if as_json:
        print_json(found)
        return
    found["state"] = _state(found)
    for key in ("steps_per_second", "heartbeat"):  # shown as `speed` and `seconds_ago`
        found.pop(key, None)
    width = max(len(_TITLES.get(key, key)) for key in found)
    for key, value in found.items():
        say(f"{_TITLES.get(key, key):<{width}}  {cell_text(value)}")


def _resume(place: RunDir) -> tuple[str, str]:
    """The command that resumes a run, and the flags in it that trust the run's code."""
    from ludus.settings.trust import flags_for, names_cluster
    from ludus.stats.run_files import read_settings

    tree = read_settings(place)[0]
    flags = flags_for(tree, names_cluster(tree))
    return f"ludus resume {shlex.quote(str(place.path))}{flags}", flags.strip()


def logs(
    run: Name,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new lines until the run ends.")
    ] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="0 prints all.")] = 0,
    runs_dir: RunsDir = None,
) -> None:
    """Print a run's log."""
    from ludus.track.atomic_files import open_read, reason
    from ludus.track.run_dir.lock import holder
    from ludus.track.run_dir.rundir import RunDir

    place = RunDir.open(run, runs_root(runs_dir))
    if not place.log.is_file():
        why = "the run has not begun"
        raise _refused(place.log, f"{place.name} has no log yet", f"ludus status {place.name}", why)
    try:
        log = open_read(place.log)
    except OSError as error:
        text = f"the log of {place.name} cannot be read: {reason(error)}"
        raise _refused(place.log, text, f"ludus status {place.name}") from None
    with io.TextIOWrapper(log, encoding="utf-8", errors="replace") as file:
        file.seek(max(0, place.log.lstat().st_size - _LOG))  # older lines are for an editor
        text = file.read()
        say("\n".join(text.splitlines()[-lines:]) if lines else text, end="\n" if lines else "")
        while follow:
            alive = holder(place.path) is not None
            new = file.read()  # after `alive`, so that no last line is lost
            say(new, end="", flush=True)
            if not alive:
                return
            if not new:
                time.sleep(0.2)


def _refused(path: Path, what: str, fix: str, why: str = "") -> LudusError:
    return LudusError("E303", what, where=str(path), why=why, fix=fix)


def stop(
    run: Name,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for its checkpoint.")] = 30.0,
    runs_dir: RunsDir = None,
) -> None:
    """Ask a run to save a checkpoint and stop (SIGTERM)."""
    from ludus.track.run_dir.lock import holder
    from ludus.track.run_dir.rundir import RunDir

    place = RunDir.open(run, runs_root(runs_dir))
    owner = holder(place.path)
    if owner is None:
        fix = f"{_resume(place)[0]}  continues it"
        raise _refused(place.path, f"{place.name} is not running", fix)
    if owner.host != socket.gethostname() or owner.pid <= 0:
        fix = f"on {owner.host}:  ludus stop {place.name}"
        why = "signals only reach processes of the same machine"
        raise _refused(place.path, f"{place.name} runs as {owner}", fix, why)
    try:
        os.kill(owner.pid, signal.SIGTERM)
    except (ProcessLookupError, PermissionError) as error:
        text = f"cannot signal {owner}: {error.strerror}"
        raise _refused(place.path, text, "ludus ls") from None
    until = time.monotonic() + wait
    while time.monotonic() < until and holder(place.path) is not None:
        time.sleep(0.05)
    stopped = holder(place.path) is None
    say(f"{place.name}: {'stopped' if stopped else 'asked to stop, still saving'}")
