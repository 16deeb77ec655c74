"""Fixtures shared with the tests of the command line."""

from tests.cli.conftest import finished

__all__ = ["finished"]
