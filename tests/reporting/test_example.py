"""docs/example-report.html: real runs, three algorithms x two environments x three seeds."""

from __future__ import annotations

import itertools
import re
import struct

from tests.reporting.conftest import embedded


def test_the_example_is_whole_small_and_of_no_particular_machine(root):
    path = root / "docs" / "example-report.html"
    rows = embedded(path)["scores"]
    shown = {(algo, env, seed) for _, env, algo, seed, *_ in rows}
    algos, envs = ("ppo", "dqn", "impala"), ("CartPole-v1", "Acrobot-v1")
    assert shown == set(itertools.product(algos, envs, (1, 2, 3))) and len(rows) == 18
    for _, env, _, _, score, _, episodes, step, *_, state in rows:
        assert episodes == 30 and step >= 100_000 and state == "finished", "whole presets"
        assert score >= {"CartPole-v1": 450, "Acrobot-v1": -100}[env]
    text = path.read_text(encoding="utf-8")
    assert len(text.encode()) < 1_500_000
    assert not re.search(r"(?:^|[\s\"'=(])(?:/(?:tmp|home|root|work|usr|opt|Users)/|file:/)", text)
    assert not re.search(r'(?:src|href)="(?!#|data:)', text), "nothing outside the file"


def test_the_screenshot_fits_a_page(root):
    data = (root / "docs" / "images" / "report.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and len(data) < 400_000
    assert struct.unpack(">I", data[16:20]) == (1400,)
