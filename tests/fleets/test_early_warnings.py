"""What a fleet says while a run begins is not lost, and ends nothing."""

from __future__ import annotations

from ludus import registry
from ludus.run.build import build_loop
from ludus.run.recording.recorder import Recorder
from ludus.track.run_dir.rundir import RunDir
from tests.contract.tiny import tiny


def test_silence_at_the_first_barrier_is_reported_later(tmp_path):
    cfg = tiny("dqn", "CartPole-v1")
    run = RunDir(tmp_path)
    loop, size = build_loop(cfg, registry.make(cfg.algo), run)
    recorder = Recorder(
        cfg, run, loop, (), quiet=True, command=["test"], exact=False, replay_bytes=size
    )
    try:
        loop.fleet.warn("actor 1 sent no heartbeat for 1.5 s, then continued")
        recorder.open(None)
        recorder.started(None)
        recorder.close()
        assert "warning: actor 1 sent no heartbeat for 1.5 s, then continued" in run.log.read_text()
    finally:
        loop.close()
