"""Evaluate the current weights in the middle of a run. The recorder writes the scores."""

from __future__ import annotations

from collections.abc import Callable

from ludus.envs.backends.failures import can_restart
from ludus.errors import LudusError
from ludus.evals.evaluate import AbandonedError, EvalResult, Progress, evaluate_policy
from ludus.run.loop import Loop
from ludus.settings.resolve import Config

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
