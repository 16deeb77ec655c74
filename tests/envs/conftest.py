"""A module of a user's own, written to a folder that is importable here and in workers."""

import itertools
import textwrap

import pytest

_numbers = itertools.count()


@pytest.fixture
def module_of(tmp_path, monkeypatch):
    def write(source: str) -> str:
        name = f"users_envs_{next(_numbers)}"
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
        monkeypatch.syspath_prepend(tmp_path)
        return name

    return write
