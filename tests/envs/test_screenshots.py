"""Pictures of how episodes ended: when asked, of what, and nothing at all otherwise."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from ludus.envs.backends.cartpole import CartPole
from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs
from ludus.envs.render.screenshots import Camera, png
from tests.cli.conftest import call
from tests.contract.tiny import run, tiny
from tests.envs.recorder import collect
from tests.skips import REASONS

pygame = pytest.importorskip("pygame")
DOCS = Path(__file__).parents[2] / "docs"


def read(path) -> np.ndarray:
    """[height, width, 3], by another program than the one that wrote it."""
    return pygame.surfarray.array3d(pygame.image.load(str(path))).swapaxes(0, 1)


@pytest.mark.parametrize("shape", [(250, 31, 3), (84, 84), (3, 5, 3)])
def test_a_png_is_read_back(shape, tmp_path):
    picture = np.random.default_rng(1).integers(0, 256, shape, np.uint8)
    (tmp_path / "x.png").write_bytes(png(picture))
    factor = max(1, 210 // shape[0])
    large = picture.repeat(factor, 0).repeat(factor, 1)
    seen = read(tmp_path / "x.png")
    assert np.array_equal(seen, large if len(shape) == 3 else np.stack([large] * 3, -1))


@pytest.mark.accept(136)
def test_every_third_episode_of_the_first_environment(tmp_path):
    cfg = EnvConfig(id="CartPole-v1", num=2, max_episode_steps=12)
    with make_envs(cfg, seed=1, camera=Camera(tmp_path / "s", 3)) as envs:
        ends = [e for e in collect(envs, 120).episodes if e.env == 0]
        found = sorted((tmp_path / "s").iterdir())
    meant = [f"{n:06d}-score{ends[n - 1].score:g}.png" for n in range(3, len(ends) + 1, 3)]
    assert [path.name for path in found] == meant and len(meant) >= 2
    assert all(read(path).shape == (400, 600, 3) for path in found)
    # A run that goes on counts on.
    with make_envs(cfg, seed=2, camera=Camera(tmp_path / "s", 3)) as envs:
        collect(envs, 60)
    numbers = [int(path.name[:6]) for path in sorted((tmp_path / "s").iterdir())]
    assert numbers[: len(meant)] == [3 * (i + 1) for i in range(len(meant))]
    assert len(numbers) > len(meant) and all(n % 3 == 0 for n in numbers)


@pytest.mark.accept(136)
def test_it_is_the_state_the_episode_ended_in(tmp_path):
    """Not the first one of the next episode, which the environment shows a moment later."""
    cfg = EnvConfig(id="CartPole-v1", num=1)
    with make_envs(cfg, seed=1, camera=Camera(tmp_path, 1)) as envs:
        envs.reset()
        for _ in range(50):
            envs.send(np.array([1]))
            if envs.recv().last[0]:
                break
        shown = envs.backend.picture(0)
        (path,) = tmp_path.iterdir()
        assert np.array_equal(read(path), shown)
        envs.send(np.array([1]))
        envs.recv()
        assert not np.array_equal(read(path), envs.backend.picture(0))


@pytest.mark.accept(136)
def test_games_stay_on_their_native_path(tmp_path):
    pytest.importorskip("ale_py", reason=REASONS["atari"])
    cfg = EnvConfig(id="pong", num=2, atari={"max_frames": 40})
    with make_envs(cfg, seed=1, camera=Camera(tmp_path, 2)) as envs:
        rows = collect(envs, 60)
        assert type(envs.backend).__name__ == "Native"
    found = sorted(tmp_path.iterdir())
    last = np.flatnonzero(rows.last[:, 0])[1::2]
    assert len(found) == len(last) >= 2
    for path, t in zip(found, last, strict=True):
        assert np.array_equal(read(path)[::2, ::2, 0], rows.obs[t + 1, 0]), "what the agent saw"
    color = EnvConfig(id="pong", native=False, atari={"max_frames": 40})
    with make_envs(color, seed=1, camera=Camera(tmp_path / "c", 1)) as envs:
        collect(envs, 20)
    assert read(next((tmp_path / "c").iterdir())).shape == (210, 160, 3)


@pytest.mark.accept(136)
def test_off_by_default_and_on_it_changes_nothing_learned(tmp_path):
    from tests.contract.same import same_checkpoints

    small = ("steps=300", "env.max_episode_steps=20")
    plain = run(tiny("dqn", "CartPole-v1", *small), tmp_path).path
    with_them = run(tiny("dqn", "CartPole-v1", *small, "log.screenshots=4"), tmp_path).path
    same_checkpoints(plain, with_them)
    assert not (plain / "screenshots").exists()
    ends = list(csv.DictReader((with_them / "episodes.csv").open()))
    first = sum(e["slot"] == "0" and e["end"] != "checkpoint" for e in ends)
    assert len(list((with_them / "screenshots").iterdir())) == first // 4 > 0
    with make_envs(tiny("dqn", "CartPole-v1").env, seed=1) as envs:
        assert isinstance(envs.backend, CartPole) and envs._camera is None


def test_episodes_of_the_other_environments_do_not_count_and_the_page_says_so(tmp_path):
    few = ("steps=160", "env.num=4", "env.max_episode_steps=20", "log.screenshots=10")
    path = run(tiny("dqn", "CartPole-v1", *few), tmp_path).path
    ends = list(csv.DictReader((path / "episodes.csv").open()))
    assert len(ends) > 10 > sum(e["slot"] == "0" for e in ends)
    assert not (path / "screenshots").exists()
    for page in ("record", "config"):
        text = " ".join((DOCS / f"{page}.md").read_text(encoding="utf-8").split())
        assert "of the first environment" in text and "may leave none" in text, page


@pytest.mark.accept(136)
@pytest.mark.parametrize("fleet", ["processes", "hogwild"])
def test_actors_in_processes_take_them_too(fleet, tmp_path):
    name = "a3c" if fleet == "hogwild" else "impala"
    more = (f"run.fleet={fleet}", "run.actors=2", "steps=400", "log.screenshots=2")
    path = run(tiny(name, "CartPole-v1", "env.max_episode_steps=10", *more), tmp_path).path
    found = list((path / "screenshots").iterdir())
    assert found and all(read(p).shape == (400, 600, 3) for p in found)


def test_what_cannot_be_pictured_is_refused_before_anything_is_written(tmp_path):
    for env, more, says in [
        ("ludus/Identity-v0", [], "cannot be shown"),
        ("CartPole-v1", ["env.workers=1"], "env.workers=0"),
    ]:
        words = ["train", "dqn", env, "log.screenshots=5", *more, "--runs-dir", tmp_path / "r"]
        answer = call(*words)
        assert answer.code == 2 and "log.screenshots" in answer.err and says in answer.err
        assert not (tmp_path / "r").exists()
