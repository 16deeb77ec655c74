"""What a run says of itself before its actors answer."""

from __future__ import annotations

import pytest

from ludus.run import session
from ludus.track.rundir import RunDir
from ludus.track.status import read_status
from tests.contract.tiny import run, tiny


@pytest.mark.parametrize("quiet", [False, True])
def test_a_start_is_announced_before_the_first_actor(tmp_path, capsys, monkeypatch, quiet):
    seen = []

    def build(cfg, algorithm, run, **_):
        seen.append((read_status(RunDir(run.path))["state"], capsys.readouterr().out))
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "build_loop", build)
    with pytest.raises(KeyboardInterrupt, match="before the first step"):
        run(tiny("dqn", "CartPole-v1", "fleet=processes", "actors=2"), tmp_path, quiet=quiet)
    [(state, said)] = seen
    assert state == "starting" and ("starting 2 actors" in said) is not quiet
