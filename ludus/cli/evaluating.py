"""`ludus eval`, and the options that it shares with play and record."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ludus.cli.output import print_json, say, warn
from ludus.cli.training import Imports, Json, RunsDir, Trusted, report_interrupt, trust_of
from ludus.errors import LudusError

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
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Settings of env: env.max_stuck=500 ..."),
]
Checkpoint = Annotated[str, typer.Option(help="best, last, or a step such as 50k.")]
Protocol = Annotated[
    str | None,
    typer.Option(help="saber, machado, dqn-2015, dopamine, r2d2; greedy: the run's own rules."),
]
Seed = Annotated[
    int | None,
    typer.Option(min=0, help="Seed of the environments; default: 10000 + the run's seed."),
]
Epsilon = Annotated[float | None, typer.Option(min=0, max=1, help="Share of random actions.")]
Sample = Annotated[
    bool, typer.Option("--sample", help="Sample from the policy instead of taking its best action.")
]
Out = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder to write to, instead of the run's.")
]
Settings = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="A config.yaml, for weights without settings."),
]
VIDEO_MINUTES = 5.0  # maximum length of the video of an evaluation


def evaluate(
    run: AgentPath,
    words: Words = None,
    protocol: Protocol = None,
    episodes: Annotated[int, typer.Option(min=1, help="Complete episodes to play.")] = 100,
    checkpoint: Checkpoint = "last",
    seed: Seed = None,
    epsilon: Epsilon = None,
    sample: Sample = False,
    render: Annotated[
        str, typer.Option(help="Show games in a window: none, one (the first) or all.")
    ] = "none",
    video: Annotated[
        bool,
        typer.Option("--video/--no-video", help="Record one more game, if ffmpeg is installed."),
    ] = True,
    out: Out = None,
    config: Settings = None,
    runs_dir: RunsDir = None,
    as_json: Json = False,
    imports: Imports = None,
    trust: Trusted = False,
) -> int:
    """Play complete episodes with a trained agent and report their scores.

    Every episode is written to the run's eval/, as JSON and CSV. Uses as many threads as the run
    was trained with (run.threads).
    """
    trusted = trust_of(imports, trust, words)
    agent = open_agent(run, checkpoint, runs_dir, trusted, config)
    how: Any = {"protocol": protocol, "settings": words or [], "epsilon": epsilon, "sample": sample}
    with report_interrupt("before the last episode, so no score was kept"):
        result: EvalResult = agent.evaluate(episodes, seed=seed, render=render, quiet=False, **how)
    from ludus.evals.result import write_result

    folder = folder_of("eval", run, out, runs_dir)
    written = None if folder is None else write_result(result, folder)
    if not as_json:  # before the video, which takes a while
        _print_result(result)
        if written is not None:
            say(f"episodes: {written}", flush=True)
    film, place = None, folder_of("videos", run, out, runs_dir)
    if video and render == "none" and place is not None:
        with report_interrupt("while recording a video; the scores are kept"):
            film = _film(agent, agent.rules(**how), place, seed)
    if as_json:
        files = {"file": written and str(written), "video": film and str(film)}
        print_json({**result.as_dict(), **files})
    elif film is not None:
        say(f"video: {film}")
    return 0


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
    """The folder for the `eval` or `videos` of an agent: `out`, or inside its run; None without
    either."""
    from ludus.api import find_agent
    from ludus.track.run_dir.rundir import run_of

    home = run_of(find_agent(run, runs_dir))
    return out if out is not None or home is None else home.path / kind


def _film(agent: Agent, rules: Rules, folder: Path, seed: int | None) -> Path | None:
    """Record one game if possible. The scores matter more: a failure here does not end the
    command."""
    from ludus.evals.film import record, video_installed

    if not video_installed():
        return None
    try:
        films = record(agent, rules, folder, seed=agent.eval_seed(seed), minutes=VIDEO_MINUTES)
        return next(iter(list(films))).path
    except LudusError:  # no pictures, no space
        return None


def _print_result(result: EvalResult) -> None:
    from ludus.run.recording.messages import with_rules

    ends = result.interval
    shown = f"  (95 % bootstrap interval {ends[0]:.2f} to {ends[1]:.2f})" if ends else ""
    text = (
        f"mean {result.mean:.2f}{shown}   median {result.median:.2f}"
        f"   std {result.std:.2f}   {len(result.scores)} episodes, step {result.step}"
    )
    say(with_rules(text, result.settings) + _chosen(result.settings))
    if result.settings["differs"]:
        say(f"  {result.settings['protocol']}: {', '.join(result.settings['differs'])}")
    by_length = result.as_dict().get("by_length", {})
    names = {"5min": "at 5 minutes", "30min": "at 30 minutes", "full": "at the end"}
    for name, numbers in by_length.items():
        mean, median, std = (numbers[k] for k in ("mean", "median", "std"))
        say(f"  {names[name]:<14} mean {mean:.2f}   median {median:.2f}   std {std:.2f}")


def _chosen(settings: dict[str, Any]) -> str:
    """How actions were chosen, unless it was always the best one."""
    epsilon = f", epsilon {settings['epsilon']:g}" if settings["epsilon"] else ""
    return epsilon + (", actions sampled" if settings["sample"] else "")
