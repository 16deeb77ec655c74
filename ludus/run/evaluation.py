"""An evaluation in the middle of a run. What becomes of its scores is the recorder's business."""

from __future__ import annotations

from ludus.config import Config
from ludus.evals.evaluate import AbandonedError, EvalResult, evaluate_policy
from ludus.run.loop import Loop


def evaluate_loop(cfg: Config, loop: Loop) -> EvalResult | None:
    """As configured, with the weights of now; None if the run was told to leave."""
    try:
        return evaluate_policy(
            loop.learner.algorithm,
            loop.learner.net,
            cfg.env,
            episodes=cfg.eval.episodes,
            seed=cfg.run.seed,
            epsilon=cfg.eval.epsilon,
            stopping=loop.is_leaving,
        )
    except AbandonedError:
        return None
