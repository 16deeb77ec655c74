"""The options of the command line that a test covers; test_flags.py finds any that none does."""

from __future__ import annotations

import pytest

COVERED: set[str] = set()


def changes(*options: str):
    COVERED.update(options)
    return pytest.mark.accept(127)
