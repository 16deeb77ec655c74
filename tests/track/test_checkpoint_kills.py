"""SIGKILL while a checkpoint is written: nothing unreadable, nothing acknowledged lost."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "checkpoint_kills.py"


@pytest.mark.slow  # nineteen processes, each killed
@pytest.mark.accept(138)
def test_kills_leave_only_whole_checkpoints(tmp_path):
    out = tmp_path / "kills.json"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--kills", "10", "--points", "9", "--out", str(out)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(out.read_text())
    assert result["faults"] == []
    assert result["kills"] >= result["killed_while_writing"] == 10
    assert result["newest_step"] > 0
    assert result["operations_killed_before"] >= 10
