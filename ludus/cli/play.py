"""`ludus play` shows an agent in a window, `ludus record` writes videos of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ludus.cli.evaluating import (
    AgentPath,
    Checkpoint,
    Epsilon,
    Out,
    Protocol,
    Sample,
    Seed,
    Settings,
    Words,
    folder_of,
    open_agent,
)
from ludus.cli.output import print_json, say
from ludus.cli.training import Imports, Json, RunsDir, Trusted, trust_of
from ludus.errors import LudusError


def play(
    run: AgentPath,
    words: Words = None,
    protocol: Protocol = None,
    episodes: Annotated[
        int, typer.Option(min=0, help="Number of games; 0: until the window is closed.")
    ] = 0,
    checkpoint: Checkpoint = "last",
    seed: Seed = None,
    epsilon: Epsilon = None,
    sample: Sample = False,
    speed: Annotated[
        float, typer.Option(min=0.01, max=1000, help="2 is twice the normal speed.")
    ] = 1.0,
    config: Settings = None,
    runs_dir: RunsDir = None,
    imports: Imports = None,
    trust: Trusted = False,
) -> int:
    """Watch an agent play in a window, with its score and value estimate."""
    from ludus.envs.render.viewer import check_display

    check_display()
    trusted = trust_of(imports, trust, words)
    agent = open_agent(run, checkpoint, runs_dir, trusted, config)
    from ludus.evals import film

    rules = agent.rules(protocol, words or [], epsilon=epsilon, sample=sample)
    start = agent.eval_seed(seed)
    ends = film.play(agent, rules, seed=start, episodes=episodes, speed=speed)
    for n, ended in enumerate(ends, 1):
        say(f"episode {n}: score {ended.score:g}, {ended.length} steps, {ended.end}", flush=True)
    return 0


def record(
    run: AgentPath,
    words: Words = None,
    protocol: Protocol = None,
    episodes: Annotated[int, typer.Option(min=1, help="Number of games, one file each.")] = 1,
    checkpoint: Checkpoint = "last",
    all_checkpoints: Annotated[
        bool, typer.Option("--all-checkpoints", help="Record every checkpoint of the run.")
    ] = False,
    gif: Annotated[bool, typer.Option("--gif", help="Animated GIF instead of mp4.")] = False,
    minutes: Annotated[
        float, typer.Option(min=0.001, help="Cut games after this much play.")
    ] = 30.0,
    seed: Seed = None,
    epsilon: Epsilon = None,
    sample: Sample = False,
    out: Out = None,
    config: Settings = None,
    runs_dir: RunsDir = None,
    as_json: Json = False,
    imports: Imports = None,
    trust: Trusted = False,
) -> int:
    """Record an agent's games as videos, with its score and value estimate. Needs no display."""
    trusted = trust_of(imports, trust, words)
    from ludus.evals import film

    film.check_video()
    folder = folder_of("videos", run, out, runs_dir) or Path("videos")
    made: list[dict[str, Any]] = []
    for which in _steps(run, runs_dir) if all_checkpoints else [checkpoint]:
        agent = open_agent(run, which, runs_dir, trusted, config)
        rules = agent.rules(protocol, words or [], epsilon=epsilon, sample=sample)
        how: dict[str, Any] = {"episodes": episodes, "gif": gif, "minutes": minutes}
        for shot in film.record(agent, rules, folder, seed=agent.eval_seed(seed), **how):
            made.append(shot.as_dict())
            if not as_json:
                cut = "" if shot.whole else f", cut after {minutes:g} minutes"
                seen = f"score {shot.score:g}, {shot.length} steps, step {shot.step}{cut}"
                say(f"{shot.path}: {seen}", flush=True)
    if as_json:
        print_json(made)
    return 0


def _steps(run: str, runs_dir: Path | None) -> list[str]:
    from ludus.api import find_agent
    from ludus.track.checkpoint.format import checkpoint_paths

    place = find_agent(run, runs_dir)
    if not (place / "checkpoints").is_dir():
        raise LudusError(
            "E104",
            f"--all-checkpoints, but {run} is one agent",
            where="--all-checkpoints",
            why="only a run has several checkpoints",
            fix="leave it out, or name the run",
        )
    return [str(step) for step in checkpoint_paths(place / "checkpoints")]
