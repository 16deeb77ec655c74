"""The verb that judges: eval."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ludus.cli.output import print_error, print_json, say, warn
from ludus.cli.training import Imports, Json, RunsDir, Trusted, trust_of
from ludus.errors import SIGINT_EXIT, LudusError

if TYPE_CHECKING:
    from ludus.evals.agent import Agent
    from ludus.evals.result import EvalResult
    from ludus.evals.rules import Rules
    from ludus.settings.trust import Trust

AgentPath = Annotated[
    str,
    typer.Argument(metavar="RUN", help="A run, a checkpoint, a model.safetensors, or agent:NAME."),
]
Words = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Of env: env.max_stuck=500 ...")
]
Checkpoint = Annotated[str, typer.Option(help="best, last, or a step such as 50k.")]
Protocol = Annotated[
    str | None,
    typer.Option(help="saber, machado, dqn-2015, dopamine, r2d2; greedy: the run's own rules."),
]
Seed = Annotated[
    int | None,
    typer.Option(min=0, help="Seed of the environments; else 10000 + that of the run."),
]
Epsilon = Annotated[float | None, typer.Option(min=0, max=1, help="Share of random actions.")]
Sample = Annotated[
    bool, typer.Option("--sample", help="Sample the policy instead of its best action.")
]
Out = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where to write, instead of into the run.")
]
Settings = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="A config.yaml, for weights without settings."),
]
VIDEO_MINUTES = 5.0  # of the video that an evaluation leaves


def evaluate(
    run: AgentPath,
    words: Words = None,
    protocol: Protocol = None,
    episodes: Annotated[int, typer.Option(min=1, help="Whole episodes to play.")] = 100,
    checkpoint: Checkpoint = "last",
    seed: Seed = None,
    epsilon: Epsilon = None,
    sample: Sample = False,
    render: Annotated[
        str, typer.Option(help="Show in a window: none, one (the first) or all of the games.")
    ] = "none",
    video: Annotated[
        bool, typer.Option("--video/--no-video", help="Record one more game, where ffmpeg is.")
    ] = True,
    out: Out = None,
    config: Settings = None,
    runs_dir: RunsDir = None,
    as_json: Json = False,
    imports: Imports = None,
    trust: Trusted = False,
) -> int:
    """Play whole episodes with a trained agent and report their scores.

    Every episode is kept in the run's eval/, as JSON and CSV. With as many threads as the run was
    trained with (run.threads).
    """
    vouched = trust_of(imports, trust, words)
    agent = open_agent(run, checkpoint, runs_dir, vouched, config)
    how: dict[str, Any] = {"protocol": protocol, "settings": words or []}
    how |= {"epsilon": epsilon, "sample": sample}
    with _told_if_interrupted("before the last episode, so no score was kept"):
        result: EvalResult = agent.evaluate(episodes, seed=seed, render=render, quiet=False, **how)
    from ludus.evals.result import write_result

    folder = folder_of("eval", run, out, runs_dir)
    written = None if folder is None else write_result(result, folder)
    if not as_json:  # at once: the video takes a while
        _tell(result)
        if written is not None:
            say(f"episodes: {written}", flush=True)
    film, place = None, folder_of("videos", run, out, runs_dir)
    if video and render == "none" and place is not None:
        with _told_if_interrupted("while recording a video; the scores are kept"):
            film = _film(agent, agent.rules(**how), place, seed)
    if as_json:
        files = {"file": written and str(written), "video": film and str(film)}
        print_json({**result.as_dict(), **files})
    elif film is not None:
        say(f"video: {film}")
    return 0


@contextmanager
def _told_if_interrupted(what: str) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        print_error(f"interrupted {what}")
        raise typer.Exit(SIGINT_EXIT) from None


def open_agent(
    run: str,
    checkpoint: str,
    runs_dir: Path | None,
    trust: Trust,
    config: Path | None = None,
) -> Agent:
    from ludus.api import load_trusted

    agent: Agent = load_trusted(run, checkpoint, runs_dir, config, trust)
    import torch

    torch.set_num_threads(agent.cfg.run.thread_count)
    for text in agent.warnings:
        warn(text)
    return agent


def folder_of(kind: str, run: str, out: Path | None, runs_dir: Path | None) -> Path | None:
    """Where the `eval` or `videos` of an agent go: `out`, or into the run that it is of; None
    where it is of none."""
    from ludus.api import find_agent
    from ludus.track.run_dir.rundir import run_of

    home = run_of(find_agent(run, runs_dir))
    return out if out is not None or home is None else home.path / kind


def _film(agent: Agent, rules: Rules, folder: Path, seed: int | None) -> Path | None:
    """One game to look at, where that is possible. The scores matter more: no failure here ends
    the command."""
    from ludus.evals.film import record, video_installed

    if not video_installed():
        return None
    try:
        films = record(agent, rules, folder, seed=agent.eval_seed(seed), minutes=VIDEO_MINUTES)
        return next(iter(list(films))).path
    except LudusError:  # no pictures, no space
        return None


def _tell(result: EvalResult) -> None:
    from ludus.run.recording.messages import with_rules

    ends = result.interval
    sure = f"  (95 % bootstrap interval {ends[0]:.2f} to {ends[1]:.2f})" if ends else ""
    text = (
        f"mean {result.mean:.2f}{sure}   median {result.median:.2f}"
        f"   std {result.std:.2f}   {len(result.scores)} episodes, step {result.step}"
    )
    say(with_rules(text, result.settings) + _chosen(result.settings))
    if result.settings["differs"]:
        say(f"  {result.settings['protocol']}: {', '.join(result.settings['differs'])}")
    told = result.as_dict().get("by_length", {})
    names = {"5min": "at 5 minutes", "30min": "at 30 minutes", "full": "at the end"}
    for name, numbers in told.items():
        mean, median, std = (numbers[k] for k in ("mean", "median", "std"))
        say(f"  {names[name]:<14} mean {mean:.2f}   median {median:.2f}   std {std:.2f}")


def _chosen(settings: dict[str, Any]) -> str:
    """How actions were chosen, where it was not the best one each time."""
    epsilon = f", epsilon {settings['epsilon']:g}" if settings["epsilon"] else ""
    return epsilon + (", actions sampled" if settings["sample"] else "")
