"""The Python API: configure, train, load, act, evaluate. The command line uses it, too.

cfg = ludus.config("dqn", "CartPole-v1", steps="50k", seed=1)
run = ludus.train(cfg)
agent = ludus.load(run.path)
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ludus import registry
from ludus.agents import PREFIX, agent_file
from ludus.errors import LudusError
from ludus.precheck import precheck
from ludus.process.child import refuse_import
from ludus.secret_masking import masked, refuse_masked
from ludus.settings.layers import plain
from ludus.settings.resolve import Config, Request, Resolved, load_config, read_config, resolve
from ludus.settings.resume import continued, extended
from ludus.settings.trust import NOTHING, Trust, modules_in, secrets_typed
from ludus.settings.yaml import write_text
from ludus.track.atomic_files import first_numbers, write_atomic
from ludus.track.checkpoint.format import REPLACED, find_checkpoint, newest_resumable
from ludus.track.metrics.writer import read_metrics
from ludus.track.run_dir.rundir import RunDir, check_name, is_run, run_of
from ludus.track.run_dir.status import LIVE, mark_finished, read_status

ALREADY = "already finished"  # the reason for ending a run without steps left


def runs_directory(given: str | Path | None = None) -> Path:
    """Return --runs-dir, else LUDUS_RUNS_DIR, else ./runs."""
    return Path(given or os.environ.get("LUDUS_RUNS_DIR") or "runs")


@dataclass(frozen=True)
class Start:
    """Options of a start that are not part of the run's configuration."""

    runs_dir: Path
    run: str | None = None  # a name: a new run is created, an existing one continues
    fresh: bool = False
    init_from: str | None = None  # a run or checkpoint to copy weights from
    quiet: bool = False
    callbacks: Sequence[Any] = ()
    command: Sequence[str] = ()
    trust: Trust = NOTHING  # code that a continued run may use
    at: str | int | None = None  # the step of the checkpoint to resume from, if not the newest


@dataclass(frozen=True)
class Saved:
    """One checkpoint of a run."""

    path: Path  # of the run
    which: str
    modules: tuple[str, ...] = ()  # modules of the user that the run names
    own: bool = False  # this process trained it with the user's settings

    def load(self) -> Any:
        return load(self.path, self.which, imports=self.modules, trust=self.own)

    def eval(self, protocol: str | None = None, *, episodes: int = 100, **how: Any) -> Any:
        how = {"imports": self.modules, "trust": self.own, "protocol": protocol, **how}
        return evaluate(self.path, checkpoint=self.which, episodes=episodes, **how)


@dataclass(frozen=True)
class Run:
    """A finished run and the path of its results."""

    path: Path
    step: int
    updates: int
    score: float | None  # mean raw score of the last training episodes
    reason: str
    exit_code: int
    saved: int | None = None  # step of the newest resumable checkpoint
    modules: tuple[str, ...] = ()  # modules of the user that it used
    own: bool = False  # this process trained it

    @property
    def last(self) -> Saved:
        return Saved(self.path, "last", self.modules, self.own)

    @property
    def best(self) -> Saved:
        """The best checkpoint by training score, or the last one if there is no best."""
        try:
            find_checkpoint(self.path, "best")
        except LudusError:
            return self.last
        return Saved(self.path, "best", self.modules, self.own)

    @property
    def config(self) -> Config:
        return read_config(self.path / "config.yaml")

    def metrics(self) -> list[dict[str, Any]]:
        """Return every line of metrics.jsonl."""
        return read_metrics(self.path / "metrics.jsonl")


def resolved(
    algo: str | None = None,
    env: Any = None,
    *,
    preset: str | None = None,
    file: str | Path | None = None,
    **settings: Any,
) -> Resolved:
    """Return the settings as `config` does, with the source of every value."""
    if env is not None and not isinstance(env, str):
        env = f"{env.__module__}:{env.__qualname__}"
    return resolve(Request(algo, env, tuple(settings.items()), [file] if file else [], preset))


def config(
    algo: str | None = None,
    env: Any = None,
    *,
    preset: str | None = None,
    file: str | Path | None = None,
    **settings: Any,
) -> Config:
    """Make the settings of a run. `settings` takes short or full names of the command line, with
    units in text: steps="2M", lr="1e-3->0", **{"algo.head.kind": "implicit"}. `env`: an id, or a
    class or function of an importable module.
    """
    found = resolved(algo, env, preset=preset, file=file, **settings)
    for note in found.notes:
        warnings.warn(note, stacklevel=2)
    return found.config


def train(
    cfg: Config | Resolved,
    *,
    runs_dir: str | Path | None = None,
    run: str | None = None,
    fresh: bool = False,
    init_from: str | Path | None = None,
    callbacks: Sequence[Any] = (),
    quiet: bool = False,
) -> Run:
    """Train until the run's steps are done or a callback stops it. Blocks."""
    if not isinstance(cfg, Resolved):
        cfg = Resolved(cfg, dict.fromkeys(cfg.flat(), "python"), user=cfg.tree())
    weights = str(init_from) if init_from else None
    place = runs_directory(runs_dir)
    return start(cfg, Start(place, run, fresh, weights, quiet, callbacks, sys.argv))


def resume(
    path: str | Path,
    *,
    runs_dir: str | Path | None = None,
    callbacks: Sequence[Any] = (),
    quiet: bool = False,
    imports: Sequence[str] = (),
    trust: bool = False,
    at: str | int | None = None,
    **settings: Any,
) -> Run:
    """Continue a run from its last checkpoint: resume("runs/x", steps="+100k"). `imports`, `trust`:
    as for `load`. `at`: go back to the checkpoint of that step; later results move to
    abandoned-1, abandoned-2, ... of the run."""
    how = Start(
        runs_directory(runs_dir),
        quiet=quiet,
        callbacks=callbacks,
        command=sys.argv,
        trust=Trust(tuple(imports), trust),
        at=at,
    )
    return resume_with(path, tuple(settings.items()), how)


def load(
    path: str | Path,
    checkpoint: str | int = "last",
    runs_dir: str | Path | None = None,
    imports: Sequence[str] = (),
    config: str | Path | None = None,
    trust: bool = False,
) -> Any:
    """Load the agent of a run, a checkpoint or a model.safetensors: `act`, `make_env`, `evaluate`.
    `imports`: modules that the files may use, since the files may come from a stranger; `trust`:
    allow all code that they name. `config`: a config.yaml for weights without settings."""
    return _warned(load_trusted(path, checkpoint, runs_dir, config, Trust(tuple(imports), trust)))


def _warned(agent: Any) -> Any:
    for text in agent.warnings:
        warnings.warn(text, stacklevel=3)
    return agent


def load_trusted(
    path: str | Path,
    checkpoint: str | int,
    runs_dir: str | Path | None,
    config: str | Path | None,
    trust: Trust,
) -> Any:
    from ludus.evals.agent import load_agent

    place = find_agent(path, runs_dir)
    settings = load_config(config, trust, follow=True) if config is not None else None
    return load_agent(place, str(checkpoint), settings, trust)


def evaluate(
    path: str | Path,
    *,
    episodes: int = 100,
    checkpoint: str | int = "last",
    runs_dir: str | Path | None = None,
    imports: Sequence[str] = (),
    config: str | Path | None = None,
    trust: bool = False,
    **how: Any,
) -> Any:
    """Evaluate an agent on whole episodes. `how`: protocol, settings, seed, epsilon, sample, render
    ("one" or "all" in a window); the rest as for `load`. The result is written to the run's eval/.
    """
    from ludus.evals.result import write_result

    place = find_agent(path, runs_dir)
    secrets = secrets_typed(how.get("settings", ()))
    vouched = Trust(tuple(imports), trust, secrets=secrets)
    agent = _warned(load_trusted(place, checkpoint, None, config, vouched))
    result = agent.evaluate(episodes, **how)
    if (run := run_of(place)) is not None:
        write_result(result, run.eval)
    return result


def find_agent(path: str | Path, runs_dir: str | Path | None = None) -> Path:
    """Find a run by path, name or suffix; a checkpoint or model.safetensors by path; agent:NAME."""
    if str(path).startswith(PREFIX):
        return agent_file(str(path))
    given = Path(path)
    lone = given.suffix == ".safetensors" and given.is_file()
    return given if lone else _place(path, runs_directory(runs_dir))


def _place(path: str | Path, runs_dir: Path) -> Path:
    """Find a run by path, name or suffix, or a checkpoint by path."""
    given = Path(path)
    if given.is_dir() and not is_run(given) and (given / "manifest.json").is_file():
        return given
    if given.is_dir() and given.parent.name == "checkpoints":
        return given
    return RunDir.open(path, runs_dir).path


def start(what: Resolved, how: Start) -> Run:
    """Start a run, or continue the existing run of that name."""
    refuse_import()
    if how.run is not None:
        there = how.runs_dir / check_name(how.run)
        if not how.fresh and is_run(there) and (there / "config.yaml").is_file():
            cfg = continued(read_config(there / "config.yaml"), what.config, what.sources)
            # Refuse imports of the existing run that the new command does not name. Its other
            # settings equal those of the command.
            named = modules_in(what.config.tree())
            replace(how.trust, modules=named).check_code(cfg.tree(), f"run {how.run}")
            # A run that was killed before its first checkpoint starts again.
            resuming = newest_resumable(there / "checkpoints") is not None
            return _go(there, cfg, what, how if resuming else _with_weights(how), resuming)
    precheck(what.config)
    how, cfg = _with_weights(how), what.config
    place = RunDir.create(
        how.runs_dir, cfg.env.id, cfg.algo_name, cfg.run.seed, name=how.run, fresh=how.fresh
    )
    write_atomic(place.config, cfg.to_yaml().encode())
    write_atomic(place.user_config, write_text(masked(plain(what.user))).encode())
    return _go(place.path, cfg, what, how, False)


def _with_weights(how: Start) -> Start:
    """Replace `init_from` by the path of its checkpoint."""
    if not how.init_from:
        return how
    return replace(how, init_from=str(find_checkpoint(_place(how.init_from, how.runs_dir))))


def resume_with(path: str | Path, overrides: Sequence[Any], how: Start) -> Run:
    refuse_import()
    place = RunDir.open(path, how.runs_dir)
    if not place.config.is_file():
        run = place.path.resolve().parent.parent
        if place.path.parent.name == "checkpoints" and (run / "config.yaml").is_file():
            raise LudusError(
                "E303",
                f"{path} is one checkpoint, not a run",
                why="a run continues from its newest checkpoint, or from that of a step",
                fix=f"ludus resume {run} --at {_step_of(place.path)}   or, from these weights,  "
                f"--init-from {path}",
            )
        raise LudusError(
            "E303",
            f"{place.name} has no config.yaml",
            where=str(place.path),
            why="the run ended before it began",
            fix="start it again",
        )
    stored = load_config(place.config, how.trust)
    step = int(read_status(place).get("step") or 0)
    if how.at is not None:
        step = _step_of(find_checkpoint(place.path, how.at))
    what = extended(stored, overrides, step)
    return _go(place.path, what.config, what, how, True)


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix(REPLACED))


def _go(path: Path, cfg: Config, what: Resolved, how: Start, resuming: bool) -> Run:
    from ludus.envs.ids import version_notes
    from ludus.evals.evaluate import check_epsilon
    from ludus.run.session import train_run

    done = _already(path, cfg) if resuming and how.at is None else None
    if done is not None:
        return done
    refuse_masked(cfg.flat())
    algorithm = registry.make(cfg.algo)
    check_epsilon(algorithm, cfg.eval.epsilon)
    result = train_run(
        cfg,
        algorithm,
        path=path,
        callbacks=list(how.callbacks),
        resume=resuming,
        at=how.at,
        init_from=Path(how.init_from) if how.init_from and not resuming else None,
        quiet=how.quiet,
        command=list(how.command),
        preset=what.preset,
        notes=what.notes or version_notes(cfg.env.id),
        csv_typed=what.typed("log.csv"),
    )
    return Run(**vars(result), modules=modules_in(cfg.tree()), own=not resuming)


def _already(path: Path, cfg: Config) -> Run | None:
    """Return the result of a run without steps left; None if it must still train or evaluate."""
    run = RunDir(path)
    status, newest = read_status(run), newest_resumable(run.checkpoints)
    if newest is None or newest < cfg.run.steps or status["state"] in LIVE:
        return None
    unfinished = status["state"] != "finished"
    if unfinished and cfg.eval.episodes and newest not in first_numbers(run.evals):
        return None
    from ludus.run.session import matched
    from ludus.track.checkpoint.reader import load_newest_good

    saved = load_newest_good(path, refill=True)
    matched(cfg, run, saved)
    if saved.warnings or saved.step < cfg.run.steps:  # damaged: continue from an earlier one
        return None
    if unfinished:
        mark_finished(run, saved.step, saved.state["updates"])
    updates, score, named = status.get("updates", 0), status.get("score"), modules_in(cfg.tree())
    return Run(path, saved.step, updates, score, ALREADY, 0, saved.step, named)
