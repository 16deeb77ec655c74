"""The evaluator's net is the learner's, tensor for tensor, whoever made that."""

from __future__ import annotations

import multiprocessing

import pytest

from ludus import registry
from ludus.fleets.processes.transport import WeightsBoard, weights_of
from ludus.run import live_evaluation as live_eval
from ludus.run.build import build_loop
from ludus.track.run_dir.rundir import RunDir
from tests.contract.tiny import tiny
from tests.run.test_live_evaluation import Reports

RETURNS = ("env.normalize.obs=true", "env.normalize.reward=true")


@pytest.mark.parametrize(
    ("fleet", "words", "columns"),
    [("hogwild", RETURNS, 5), ("processes", RETURNS, 15), ("inline", RETURNS, 15),
     ("inline", (), None)],
)  # fmt: skip
def test_its_net_takes_the_learners_weights(tmp_path, monkeypatch, fleet, words, columns) -> None:
    """Hogwild's net has the running returns of one worker, every other those of all actors."""
    monkeypatch.setattr(live_eval.LiveEvaluator, "_start", lambda self: None)
    more = (f"run.fleet={fleet}", "run.actors=3", "env.num=5", "eval.live=true")
    cfg = tiny("a3c", "CartPole-v1", *more, *words)
    run = RunDir.create(tmp_path, cfg.env.id, cfg.algo_name, cfg.run.seed)
    algorithm = registry.make(cfg.algo)
    loop, _ = build_loop(cfg, algorithm, run)
    learned = loop.learner.net
    try:
        job = live_eval.LiveEvaluator(cfg, algorithm, learned, Reports()).job
        net, board = live_eval._net(job), WeightsBoard(learned, multiprocessing)
        board.publish(learned, 5)
        assert board.pull(net) == (0, 5)
        shapes = [[tuple(w.shape) for w in weights_of(n)] for n in (net, learned)]
    finally:
        loop.close()
    assert shapes[0] == shapes[1]
    assert [n for n in (5, 15) if (n,) in shapes[0]] == ([columns] if columns else [])
