"""A module of a user's own, importable here and in workers; a look into the emulators' pools."""

import itertools
import textwrap

import numpy as np
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


@pytest.fixture
def pools(monkeypatch):
    """Every pool that is built: what it was told, and all that it answered."""
    from ale_py import vector_env

    seen = []

    class Watched(vector_env.AtariVectorEnv):
        def __init__(self, game, num, **options):
            super().__init__(game, num, **options)
            self.options, self.answers, self.total = options, [], np.zeros(num)
            seen.append(self)

        def reset(self, **how):
            answer = super().reset(**how)
            self.answers.append(answer[-1])
            return answer

        def recv(self):
            answer = super().recv()
            self.answers.append(answer[-1])
            self.total += answer[1]
            return answer

    monkeypatch.setattr(vector_env, "AtariVectorEnv", Watched)
    return seen
