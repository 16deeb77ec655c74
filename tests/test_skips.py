"""What the last lines of a test run say about skipped tests, and when a skip fails the run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

from tests import skips

SOME = """
import pytest
from tests.skips import REASONS, skip_without
@pytest.fixture(scope="session")
def browser():
    skip_without("chromium", None)
def test_good(): pass
def test_picture(browser): pass
def test_print(browser): pass
@pytest.mark.skipif(True, reason=REASONS["gpu"])
def test_gpu(): pass
"""


def test_skips_are_summed_up_at_the_end_and_fail_where_they_are_not_allowed(root, tmp_path):
    (tmp_path / "conftest.py").write_text((root / "tests" / "conftest.py").read_text())
    (tmp_path / "test_some.py").write_text(SOME)
    words = ["-m", "pytest", "-q", "-n", "1", f"--rootdir={root}", f"--confcutdir={tmp_path}"]
    words += ["-c", str(root / "pyproject.toml"), str(tmp_path)]
    env = {**os.environ, "SKIPS_ALLOWED": "gpu"}
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, cwd=root, env=env
    )
    assert done.returncode == 1, done.stdout + done.stderr
    chromium = "chromium is not installed: apt-get install chromium"
    *_, many, few, refusal, counts = done.stdout.strip().splitlines()
    assert many == f"skipped: 2 tests ({chromium})" and few == "skipped: 1 test (no CUDA device)"
    assert refusal == f"FAILED: SKIPS_ALLOWED=gpu and a test skipped: {chromium}"
    assert "1 passed, 3 skipped" in counts


def test_only_the_named_reasons_are_allowed():
    found = Counter([skips.REASONS["gpu"], skips.REASONS["xvfb"], "no time"])
    assert skips.refused(found, "gpu,xvfb") == ["no time"]
    assert skips.refused(found, "gpu") == [skips.REASONS["xvfb"], "no time"]
