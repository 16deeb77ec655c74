"""`ludus train` and `ludus resume`, and options that other verbs share."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ludus.cli.output import print_error, print_json, print_table, say, typed
from ludus.errors import SIGINT_EXIT, LudusError
from ludus.secret_masking import masked, masked_command

if TYPE_CHECKING:
    from ludus.api import Run
    from ludus.precheck import Estimate
    from ludus.settings.resolve import Config, Request, Resolved
    from ludus.settings.trust import Trust

RunsDir = Annotated[
    Path | None, typer.Option("--runs-dir", help="Folder of the runs (or LUDUS_RUNS_DIR).")
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress, only messages and results.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Watch = Annotated[
    str | None,
    typer.Option(metavar="none|one|all", help="Show games in a window; short for env.render=."),
]
Imports = Annotated[
    list[str] | None,
    typer.Option("--import", metavar="MODULE", help="A module that registers your own parts."),
]
Trusted = Annotated[
    bool,
    typer.Option(
        "--trust", help="Use all code that the files of RUN refer to, because you trust them."
    ),
]
Callbacks = Annotated[
    list[str] | None,
    typer.Option("--callback", metavar="MODULE:CLASS", help="Your own callback."),
]


Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure", help="Join a Ray cluster without a token; short for ray.insecure=true."
    ),
]


def runs_root(given: Path | None) -> Path:
    """--runs-dir, else LUDUS_RUNS_DIR, else ./runs."""
    return Path(given or os.environ.get("LUDUS_RUNS_DIR") or "runs")


def train(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="ALGO ENV KEY=VALUE", help="dqn CartPole-v1 steps=200k lr=1e-3 ..."),
    ] = None,
    config: Annotated[
        list[Path] | None,
        typer.Option("--config", "-c", metavar="FILE", help="A YAML file; later ones win."),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="A preset's name, or none; default: chosen by environment.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Short for seed=N.")] = None,
    watch: Watch = None,
    run: Annotated[
        str | None, typer.Option(help="The run's name; the same command again resumes it.")
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh", help="With --run: start again and keep the old run under another name."
        ),
    ] = False,
    init_from: Annotated[
        str | None, typer.Option(help="Start from the weights of a run or checkpoint.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print every setting and its source, then exit.")
    ] = False,
    runs_dir: RunsDir = None,
    quiet: Quiet = False,
    as_json: Json = False,
    imports: Imports = None,
    trust: Trusted = False,
    callback: Callbacks = None,
    insecure: Insecure = False,
) -> int:
    """Train an algorithm on an environment."""
    from ludus.settings.resolve import Request

    algo, env, overrides = split_words(words or [])
    overrides += [] if seed is None else [f"run.seed={seed}"]
    overrides += [] if watch is None else [f"env.render={watch}"]
    overrides += ["ray.insecure=true"] if insecure else []
    overrides += [f"run.imports=[{', '.join(imports)}]"] if imports else []
    from ludus.api import Start, start
    from ludus.track.run_dir.rundir import check_name

    place = runs_root(runs_dir)
    trusted = trust_of(None, trust)
    there = place / check_name(run) / "config.yaml" if run is not None and not fresh else None
    request = Request(algo, env, overrides, config or [], preset)
    what = _resolve(request, there, trusted)
    if dry_run:
        with report_interrupt():
            _dry_run(what, as_json)
        return 0
    how = Start(place, run, fresh, init_from, quiet, _callbacks(callback), sys.argv, trust=trusted)
    return _ended(lambda: start(what, how), as_json)


def resume(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's directory or name.")],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="steps=+100k ...")
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="STEP", help="Go back to the checkpoint of STEP; later ones are kept."
        ),
    ] = None,
    watch: Watch = None,
    runs_dir: RunsDir = None,
    quiet: Quiet = False,
    as_json: Json = False,
    imports: Imports = None,
    trust: Trusted = False,
    callback: Callbacks = None,
) -> int:
    """Continue a run from its last checkpoint, exactly."""
    from ludus.api import Start, resume_with

    how = Start(
        runs_root(runs_dir),
        quiet=quiet,
        callbacks=_callbacks(callback),
        command=sys.argv,
        trust=trust_of(imports, trust, words),
        at=at,
    )
    shown = [] if watch is None else [f"env.render={watch}"]
    return _ended(lambda: resume_with(run, [*(words or []), *shown], how), as_json)


def split_words(words: list[str]) -> tuple[str | None, str | None, list[str]]:
    """ALGO and ENV are the words without `=`; with a file neither is needed."""
    names = [w for w in words if "=" not in w]
    if len(names) > 2:
        raise LudusError(
            "E102",
            f"{names[2]!r} is neither algorithm, environment nor setting",
            where="command line",
            fix=f"settings are typed as  {names[2]}=VALUE",
        )
    algo, env = [*names, None, None][:2]
    return algo, env, [w for w in words if "=" in w]


def trust_of(
    imports: list[str] | None, whole: bool, settings: Sequence[str] | None = None
) -> Trust:
    """The trust given by --import and --trust, and the secrets among the `settings` of env."""
    from ludus import registry
    from ludus.settings.trust import Trust, secrets_typed

    registry.import_modules(imports or [])  # before names are looked up
    command = shlex.join(["ludus", *masked_command(typed())])
    return Trust(tuple(imports or ()), whole, command, secrets_typed(settings or ()))


def _resolve(request: Request, there: Path | None, trust: Trust) -> Resolved:
    """`there`: the config.yaml of a run of that name. Its imports may register ALGO."""
    from ludus.settings.resolve import resolve
    from ludus.settings.yaml import read_file

    there = there if there is not None and there.is_file() else None
    if there is not None and trust.whole:
        trust.import_parts(read_file(there).tree, str(there))
    try:
        return resolve(request)
    except LudusError as error:
        if there is not None and error.code == "E106":
            trust.check_code(read_file(there).tree, str(there))
        raise


def _callbacks(targets: list[str] | None) -> list[Any]:
    from ludus.process.modules import search_current_folder
    from ludus.registry import locate

    if targets:
        search_current_folder()
    return [locate(target)() for target in targets or []]


def _ended(begin: Callable[[], Run], as_json: bool) -> int:
    """Run to the end and return the exit code. Training handles an interrupt itself. With --json,
    only the result goes to standard output; progress goes to standard error."""
    with report_interrupt():
        with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
            run = begin()
        _print_run(run, as_json)
    return run.exit_code


@contextlib.contextmanager
def report_interrupt(what: str = "") -> Iterator[None]:
    """Print that the command was interrupted, which typer would not, and exit."""
    try:
        yield
    except KeyboardInterrupt as error:
        words = [getattr(error, "reason", "interrupted"), *map(str, error.args), what]
        print_error(" ".join(filter(None, words)))
        raise typer.Exit(int(getattr(error, "code", SIGINT_EXIT))) from None


def _print_run(run: Run, as_json: bool) -> None:
    from ludus.api import ALREADY

    if as_json:
        names = ("path", "step", "updates", "score", "reason", "saved", "exit_code")
        print_json({name: getattr(run, name) for name in names})  # a path as text
    elif run.reason == ALREADY:
        more = _how_to_continue(run) or "steps=+100k continues it"
        say(f"already at step {run.step} of {run.config.run.steps}; {more}")
    else:
        _print_end(run)


def _print_end(run: Run) -> None:
    from ludus.run.recording.messages import unsaved_steps
    from ludus.settings.trust import flags_for, needs_whole
    from ludus.track.checkpoint.format import checkpoint_paths

    score = "no episode ended" if run.score is None else f"training score {run.score:.1f}"
    say(f"{run.reason} at step {run.step}: {score}")
    if not run.updates:
        print_error("0 updates: nothing was learned; the log says why")
    if lost := unsaved_steps(run.step, run.saved):
        say(f"warning: {lost}")
    say(f"results: {run.path}")
    if (run.path / "report.html").is_file():
        say(f"report:  {run.path / 'report.html'}")
    path, flags = shlex.quote(str(run.path)), flags_for(run.config.tree(), needs_whole(run.config))
    learned = run.updates and checkpoint_paths(run.path / "checkpoints")
    works = [f"ludus eval {path}{flags}"] if learned else []
    if run.saved is not None and run.reason != "finished":  # there are steps left
        works.append(f"ludus resume {path}{flags}")
    elif run.saved is not None and not _how_to_continue(run):
        works.append(f"ludus resume {path} steps=+100k{flags}")
    if works:
        say(f"next:    {'   '.join(works)}")


def _how_to_continue(run: Run) -> str:
    """How to continue a run whose learning rate is zero; empty for others."""
    from ludus import registry
    from ludus.run.compatibility import learn_on, no_lr_from

    cfg = run.config
    end = no_lr_from(cfg, registry.make(cfg.algo).plan)
    return "" if end is None or end > run.step else f"its lr is 0 now;  {learn_on(cfg, run.path)}"


def _memory(cfg: Config, estimate: Estimate) -> str:
    from ludus.process.limits import memory
    from ludus.run.replay_state import saves_replay
    from ludus.units import show_bytes

    found = memory()
    free = f"{show_bytes(found.free)} free here{found.limited_by}"
    size = show_bytes(estimate.replay_bytes)
    if not estimate.replayed:
        return f"rollouts {size}; {free}"
    saved = saves_replay(cfg.run.save_replay, estimate.replay_bytes)
    kept = "saved with checkpoints" if saved else "not saved: a resumed run refills it first"
    return f"replay {size}, {kept}; {free}"


def _actors(cfg: Config) -> str:
    from ludus.run.compatibility import processes_bytes
    from ludus.units import show_bytes

    actors, num_envs = cfg.run.actors, cfg.env.num_envs
    shown = f"{actors} x {num_envs} = {actors * num_envs} environments"
    learners = cfg.run.learners
    if learners > 1:
        shown = f"{shown}, divided among {learners} learners"
    if not cfg.run.capabilities.own_processes:
        return shown if learners > 1 else f"{shown}, in this process"
    memory = show_bytes(processes_bytes(cfg))
    return f"{shown}, in separate processes: about {memory} plus the environments"


def _sourced(tree: dict[str, Any], sources: dict[str, str]) -> list[tuple[str, Any, str]]:
    """(key, value, source); a completely masked table has the source of its first part."""
    from ludus.settings.layers import leaves

    rows = []
    for key, value in ((".".join(key), value) for key, value in leaves(tree)):
        inside = (source for name, source in sources.items() if name.startswith(f"{key}."))
        rows.append((key, value, sources.get(key) or next(inside)))
    return rows


def _dry_run(what: Resolved, as_json: bool) -> None:
    from ludus.precheck import precheck
    from ludus.run.compatibility import processes_bytes
    from ludus.run.recording.messages import checkpoint_schedule, protocol_name
    from ludus.units import show_count

    cfg, estimate = what.config, precheck(what.config)
    tree, warnings = masked(cfg.tree()), [*what.notes, *estimate.warnings]
    if as_json:
        print_json(
            {
                "config": tree,
                "sources": what.sources,
                "preset": what.preset,
                "replay_bytes": estimate.replay_bytes,
                "process_bytes": processes_bytes(cfg),
                "parameters": estimate.parameters,
                "checkpoint_steps": estimate.checkpoint_steps,
                "warnings": warnings,
            }
        )
        return
    print_table(("key", "value", "source"), _sourced(tree, what.sources))
    spec = estimate.spec
    say(f"\nenvironment  {spec.id}: actions {spec.action}, {cfg.env.num_envs} at a time")
    if cfg.run.actors > 1 or cfg.run.capabilities.own_processes:
        say(f"actors       {_actors(cfg)}")
    flags, steps = cfg.env.atari, cfg.run.steps
    if flags is not None:
        frames = show_count(steps * flags.skip)
        say(f"length       {show_count(steps)} steps of {flags.skip} frames: {frames} frames")
        say(f"protocol     {protocol_name(cfg.env.score_facts)}")
    say(f"network      {show_count(estimate.parameters)} parameters, targets included if any")
    say(f"memory       {_memory(cfg, estimate)}")
    say(f"checkpoints  {checkpoint_schedule(cfg, estimate.checkpoint_steps)}")
    for warning in warnings:
        say(f"warning      {warning}")
