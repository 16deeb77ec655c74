"""Evaluate the current weights in the middle of a run, and write the scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ludus.envs.backends.failures import can_restart
from ludus.errors import LudusError
from ludus.evals.evaluate import AbandonedError, EvalResult, Progress, evaluate_policy
from ludus.run.loop import Loop
from ludus.run.recording.messages import with_rules
from ludus.settings.resolve import Config
from ludus.track.metrics.sinks import Copies
from ludus.track.metrics.writer import MetricWriter
from ludus.units import show_count

FIRST_SECONDS = 5.0  # before the first progress message, as in a run


def evaluate_loop(
    cfg: Config, loop: Loop, title: str, say: Callable[[str], None]
) -> EvalResult | None:
    """Evaluate the current weights with the run's settings. Return None if the run is leaving, or
    if an environment failed and env.on_error=restart. `say` receives progress messages."""
    every = cfg.log.seconds
    first = min(every, FIRST_SECONDS)
    try:
        with loop.clock.outside():
            return evaluate_policy(
                loop.learner.algorithm,
                loop.learner.net,
                cfg.env,
                episodes=cfg.eval.episodes,
                seed=cfg.run.seed,
                epsilon=cfg.eval.epsilon,
                progress=Progress(cfg.eval.episodes, say, title, every=every, first=first),
                stopping=loop.is_leaving,
                pulse=loop.pulse,
            )
    except AbandonedError:
        return None
    except LudusError as error:
        if not (cfg.env.rebuilds and can_restart(error)):
            raise
        say(f"warning: {error.what} ({error.where})")
        return None


class RecorderView(Protocol):
    """The part of a recorder that evaluations use."""

    writer: MetricWriter
    board: Copies
    evaluation: str  # the newest result, for the display

    def say(self, text: str) -> None: ...


def write_evaluation(
    out: RecorderView,
    cfg: Config,
    step: int,
    updates: int,
    scores: list[float],
    lengths: list[int],
    seconds: float,
    *,
    live: bool = False,
) -> None:
    """Write a result at the step of its weights. A live result is earlier than the current step."""
    kind, at = "live evaluation" if live else "evaluation", show_count(step)
    rules = cfg.env.score_facts
    facts = out.writer.evaluation(
        step, updates, scores, lengths, checkpoint="live" if live else "", seconds=seconds
    )
    out.writer.event(kind, step, mean=facts["mean"], **rules)
    area = "performance/live_eval" if live else "performance/eval"
    out.board.write(step, {f"{area}_{k}": v for k, v in facts.items()})
    score = f"{facts['mean']:.4g} ± {facts['std']:.3g} ({len(scores)} episodes)"
    out.evaluation = f"{score} at {at}" if live else score
    out.say(with_rules(f"{kind} at step {at}: {score}", rules))
