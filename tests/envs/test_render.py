"""Looking on: none, one or all environments in a window, and what is said where there is none."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

import ludus
from ludus.envs.backends.cartpole import CartPole
from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs
from ludus.errors import LudusError
from ludus.evals.agent import Agent
from tests.cli.conftest import call
from tests.envs.recorder import collect

pygame = pytest.importorskip("pygame")


@pytest.fixture(autouse=True)
def screen(monkeypatch):
    """A window nobody sees, and no waiting for the eye."""
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setattr(
        "ludus.envs.render.viewer.Viewer.__init__", _hasty(ludus.envs.render.viewer.Viewer)
    )


def _hasty(viewer):
    plain = viewer.__init__

    def init(self, envs, title):
        plain(self, envs, title)
        self.pace, self._fps = self._fps, 0  # pygame's word for "at once"

    return init


def pixels() -> np.ndarray:
    return pygame.surfarray.array3d(pygame.display.get_surface()).swapaxes(0, 1)


def modes(envs) -> list[str | None]:
    return [env.render_mode for env in envs.backend._envs]


@pytest.mark.accept(122)
@pytest.mark.parametrize(
    ("render", "shown"), [("one", ["rgb_array", None, None]), ("all", ["rgb_array"] * 3)]
)
def test_one_or_all_are_shown(render, shown):
    cfg = EnvConfig(id="CartPole-v1", num=3, render=render)
    with make_envs(cfg, seed=1) as envs:
        collect(envs, 4)
        assert modes(envs) == shown
        picture, tiles = pixels(), [env.render() for env in envs.backend._envs if env.render_mode]
        height, width = (720, 960) if render == "all" else (400, 600)
        assert picture.shape[0] <= height and picture.shape[1] <= width
        if render == "one":
            assert np.array_equal(picture, tiles[0])
        else:  # two beside each other, one below
            half = [picture[: picture.shape[0] // 2, : picture.shape[1] // 2], picture[-1:, -1:]]
            assert half[0].any() and not half[1].any()
    assert pygame.display.get_surface() is None  # closed with the environments


@pytest.mark.accept(122)
def test_one_is_the_first_of_all_actors():
    cfg = EnvConfig(id="CartPole-v1", num=2, render="one")
    with make_envs(cfg, seed=1, first_env=2) as envs:
        collect(envs, 4)
        assert modes(envs) == [None, None]
    assert pygame.display.get_surface() is None
    cfg = cfg.model_copy(update={"render": "all"})
    with make_envs(cfg, seed=1, first_env=2) as envs:
        collect(envs, 4)
        assert modes(envs) == ["rgb_array"] * 2


@pytest.mark.accept(122)
def test_by_default_nobody_looks_on():
    with make_envs(EnvConfig(id="CartPole-v1", num=3), seed=1) as envs:
        collect(envs, 4)
        assert isinstance(envs.backend, CartPole)
    assert pygame.display.get_surface() is None


def test_who_looks_on_changes_nothing():
    rows = []
    for render in ("none", "one", "all"):
        with make_envs(EnvConfig(id="CartPole-v1", num=2, render=render), seed=1) as envs:
            rows.append(collect(envs, 60))
    assert all(np.array_equal(rows[0].obs, other.obs) for other in rows[1:])
    assert all(np.array_equal(rows[0].last, other.last) for other in rows[1:])


@pytest.mark.accept(122)
def test_games_leave_the_native_path_to_be_shown():
    cfg = EnvConfig(id="pong", num=2, render="one")
    assert not cfg.native_atari and cfg.score_facts == EnvConfig(id="pong").score_facts
    with make_envs(cfg, seed=1) as envs:
        collect(envs, 2)
        assert modes(envs) == ["rgb_array", None] and pixels().shape == (210 * 3, 160 * 3, 3)
        assert envs.backend._viewer.pace == 60 / 4


def test_a_closed_window_ends_the_show_not_the_run():
    with make_envs(EnvConfig(id="CartPole-v1", render="one"), seed=1) as envs:
        envs.reset()
        pygame.event.post(pygame.event.Event(pygame.QUIT))
        for _ in range(3):
            envs.send(np.array([1]))
            envs.recv()
        assert not envs.backend._viewer.open and pygame.display.get_surface() is None


def test_workers_show_too():
    with make_envs(EnvConfig(id="CartPole-v1", num=2, workers=2, render="all"), seed=1) as envs:
        shown = collect(envs, 5)
    with make_envs(EnvConfig(id="CartPole-v1", num=2), seed=1) as envs:
        assert np.array_equal(collect(envs, 5).obs, shown.obs)


@pytest.mark.accept(122)
def test_from_the_command_line(tmp_path, monkeypatch):
    small = ["steps=100", "warmup=40", "algo.batch=8", "env.num=2", "tensorboard=off"]
    names = ["dqn", "CartPole-v1", *small, "--runs-dir", tmp_path, "--run", "x", "-q"]
    assert call("train", *names, "render=all").code == 0
    asked = []
    evaluate = Agent.evaluate
    monkeypatch.setattr(
        Agent, "evaluate", lambda self, *a, **k: asked.append(k) or evaluate(self, *a, **k)
    )
    scores = []
    for render in ("none", "one"):
        path = ("eval", tmp_path / "x", "--episodes", "2", "--render", render, "--json")
        scores.append(call(*path).json["scores"])
    assert scores[0] == scores[1] and [k["render"] for k in asked] == ["none", "one"]
    answer = call("eval", tmp_path / "x", "--render", "oen")
    assert answer.code == 2 and "did you mean  one ?" in answer.err
    # Where the run goes on nobody need be looking.
    assert call("resume", tmp_path / "x", "steps=+20", "env.render=none", "-q").code == 0


@pytest.mark.accept(122)
def test_without_a_display_it_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("SDL_VIDEODRIVER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    answer = call("train", "dqn", "CartPole-v1", "env.render=one", "--runs-dir", tmp_path / "runs")
    assert answer.code == 2 and "error[E104] there is no display" in answer.err
    assert "where: env.render" in answer.err and "DISPLAY" in answer.err and "fix:" in answer.err
    assert not (tmp_path / "runs").exists()
    with pytest.raises(LudusError, match="no display"):
        make_envs(EnvConfig(id="pong", render="all"), seed=1)


def test_what_has_no_pictures_says_so(module_of):
    with pytest.raises(LudusError, match="rgb_array") as caught:
        make_envs(EnvConfig(id="ludus/Counter-v0", render="one"), seed=1)
    assert caught.value.code == "E104" and "env.render" in caught.value.where
    name = module_of(
        """
        from gymnasium.envs.classic_control import CartPoleEnv
        class Takes(CartPoleEnv):
            metadata = {"render_modes": []}
        class Bare(CartPoleEnv):
            def __new__(cls, **options):
                if options:
                    raise TypeError("Bare() takes no arguments")
                return super().__new__(cls)
        class Fails(CartPoleEnv):
            def render(self):
                return None
        class Raises(CartPoleEnv):
            def render(self):
                raise OSError("no brush")
        """
    )
    for attribute, code, says in [
        ("Takes", "E104", "cannot be shown"),
        ("Bare", "E104", "cannot be shown or filmed"),
        ("Fails", "E202", "render() returned None"),
        ("Raises", "E205", "no brush"),
    ]:
        with pytest.raises(LudusError) as caught:
            make_envs(EnvConfig(id=f"{name}:{attribute}", render="one"), seed=1).reset()
        assert caught.value.code == code and says in caught.value.what
    with pytest.raises(ValidationError, match="exclude each other"):
        EnvConfig(id="pong", render="one", args={"render_mode": "human"})
