"""Videos that decode to the frames they should have, and the window an agent plays in."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

import ludus
from ludus.evals import film
from ludus.evals.agent import load_agent
from ludus.evals.episode_stream import EpisodeStream, Moment
from ludus.evals.film import Captions, caption_of
from tests.cli.conftest import call
from tests.contract.tiny import run, tiny
from tests.skips import REASONS, skip_without
from tests.started import kept

imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")


def decoded(path) -> tuple[list[np.ndarray], dict]:
    """Every frame [height, width, 3], and what the file says of itself."""
    reader = imageio_ffmpeg.read_frames(str(path))
    meta = next(reader)
    width, height = meta["size"]
    return [np.frombuffer(f, np.uint8).reshape(height, width, 3) for f in reader], meta


@pytest.fixture(scope="module")
def cart(tmp_path_factory):
    """A run with several checkpoints. Read only, but for eval/ and videos/."""
    small = ("steps=240", "checkpoint_every=120", "env.max_episode_steps=20")
    return run(tiny("dqn", "CartPole-v1", *small), tmp_path_factory.mktemp("runs")).path


@pytest.mark.accept(146)
@pytest.mark.parametrize("more", [(), ("--gif",)])
def test_an_episode_is_all_there(cart, tmp_path, monkeypatch, more):
    """A picture before the first action, and one after each."""
    draw, drawn = Captions.frame, []
    monkeypatch.setattr(Captions, "frame", lambda *a: drawn.append(a[1]) or draw(*a))
    answer = call("record", cart, "--episodes", "2", "--out", tmp_path, "--json", *more)
    assert answer.code == 0, answer.err
    assert len(answer.json) == 2 and len({result["seed"] for result in answer.json}) == 2
    for n, result in enumerate(answer.json, 1):
        path = tmp_path / f"greedy-{result['step']}-{n}.{'gif' if more else 'mp4'}"
        assert result["path"] == str(path) and result["whole"] is True
        kept = json.loads(path.with_suffix(".json").read_text())
        assert kept == {**result, "path": path.name}
        frames, meta = decoded(path)
        assert len(frames) == result["frames"] == result["length"] + 1 == result["score"] + 1
        moments, drawn = drawn[: len(frames)], drawn[len(frames) :]
        assert [m.step for m in moments] == list(range(len(frames))), "each moment, once"
        assert [m.ended is not None for m in moments] == [False] * result["length"] + [True]
        assert meta["fps"] == pytest.approx(50, rel=0.01) and meta["size"] == (600, 434)
        above, below = frames[0][:400], frames[0][400:]
        assert above.mean() > 200, "CartPole is drawn on white"
        assert below.mean() < 80 and below.max() > 150, "and the caption in white on dark"
    assert not list(tmp_path.glob(".part-*"))


@pytest.mark.accept(146)
def test_the_games_are_those_of_the_evaluation(cart, tmp_path):
    agent = load_agent(cart)
    scores = agent.evaluate(3, seed=7).scores
    films = film.record(agent, agent.rules(), tmp_path, seed=7, episodes=3)
    assert [shot.score for shot in films] == scores


@pytest.mark.accept(146)
def test_every_checkpoint(cart):
    shutil.rmtree(cart / "videos", ignore_errors=True)
    answer = call("record", cart, "--all-checkpoints", "--minutes", "0.002")
    steps = sorted(int(p.name) for p in (cart / "checkpoints").iterdir() if p.name.isdigit())
    assert len(steps) >= 2 and answer.code == 0, answer.err
    for step in steps:
        frames, _ = decoded(cart / "videos" / f"greedy-{step}-1.mp4")
        assert len(frames) == 6, "0.002 minutes at 50 a second"
    assert answer.out.count("cut after") == len(steps)
    refused = call("record", next(cart.glob("checkpoints/0*")), "--all-checkpoints")
    assert refused.code == 2 and "E104" in refused.err


def test_a_short_cut_replaces_no_whole_film(cart, tmp_path):
    words = ("record", cart, "--out", tmp_path, "--json")
    whole = call(*words).json[0]
    cut = call(*words, "--minutes", "0.002").json[0]
    assert whole["whole"] and not cut["whole"] and whole["path"] != cut["path"]
    assert len(decoded(whole["path"])[0]) == whole["frames"] > cut["frames"]
    assert call(*words).json[0]["path"] == whole["path"], "the same again"


def test_after_a_cut_the_next_episode_is_a_new_one(cart, tmp_path):
    agent = load_agent(cart)
    short = list(film.record(agent, agent.rules(), tmp_path, seed=7, episodes=2, minutes=0.002))
    assert [shot.whole for shot in short] == [False, False]
    first = [decoded(shot.path)[0][0][:400] for shot in short]
    whole = list(film.record(agent, agent.rules(), tmp_path / "w", seed=7, episodes=2))
    for cut, full in zip(first, whole, strict=True):
        assert np.abs(cut.astype(int) - decoded(full.path)[0][0][:400]).mean() < 1


@pytest.mark.parametrize("program", ["/nowhere/ffmpeg", "/bin/false"])
def test_an_ffmpeg_that_does_not_run_costs_no_scores(cart, monkeypatch, program):
    shutil.rmtree(cart / "videos", ignore_errors=True)
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", program)
    answer = call("eval", cart, "--episodes", "2")
    assert answer.code == 0 and "mean" in answer.out and "video:" not in answer.out, answer.err
    refused = call("record", cart, "--minutes", "0.002")
    assert refused.code != 0 and "E301" in refused.err and "Traceback" not in refused.err


@pytest.mark.accept(146)
def test_an_evaluation_leaves_one_video(cart, tmp_path, monkeypatch):
    shutil.rmtree(cart / "videos", ignore_errors=True)
    plain = call("eval", cart, "--episodes", "2", "--json").json
    videos = list((cart / "videos").glob("*.mp4"))
    assert [str(v) for v in videos] == [plain["video"]] and len(decoded(videos[0])[0]) > 1
    shutil.rmtree(cart / "videos")
    assert call("eval", cart, "--episodes", "2", "--json", "--no-video").json["video"] is None
    monkeypatch.setattr(film, "video_installed", lambda: False)
    assert call("eval", cart, "--episodes", "2", "--json").json["video"] is None
    assert not (cart / "videos").exists()
    refused = call("record", cart)
    assert refused.code == 1 and "E501" in refused.err and "'.[video]'" in refused.err


@pytest.mark.parametrize(
    ("name", "more"),
    [("dqn", ()), ("ppo", ("env.normalize={obs: true}",)), ("impala", ("recurrent={hidden: 8}",))],
)
def test_the_value_is_that_of_the_picture(name, more, tmp_path):
    """Best Q, a critic beside the policy, or one behind a memory."""
    agent = load_agent(run(tiny(name, "CartPole-v1", "steps=64", *more), tmp_path).path)
    watched = EpisodeStream(agent, agent.rules(), seed=3)
    moments = watched.moments()
    taken = [next(moments) for _ in range(8)]
    watched.close()
    # Once more by hand: the same game, one observation after the other.
    env, _ = ludus.envs.make.make_one(agent.cfg.env)
    obs, _ = env.reset(seed=watched.seed_of(0))
    net, state, first = agent.net["online"], (), torch.ones(1, 1, dtype=torch.bool)
    state = net.core.initial(1) if name == "impala" else ()
    before = torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 1)
    for t, moment in enumerate(taken):
        seen = torch.as_tensor(obs)[None]
        if "normalizer" in agent.net:
            seen = agent.net["normalizer"].obs(seen)
        with torch.no_grad():
            if name == "dqn":
                q = net(seen).q
                value, action = q.max(), q.argmax()
            elif name == "ppo":
                value, action = net.values(seen), net.dist(seen).mode()
            else:
                out = net(seen[None], first, state, before)
                value, action, state = out.value, out.params.argmax(), out.state
        assert moment.value == pytest.approx(float(value), abs=1e-5) and moment.step == t
        obs, reward, *_ = env.step(int(action))
        before, first = (action.view(1, 1), torch.full((1, 1), reward)), torch.zeros_like(first)
    assert not any(part._forward_hooks for part in agent.net.modules())


def test_captions():
    moment = Moment(np.full((105, 81, 3), 200, np.uint8), 21.0, -0.5, 12)
    assert caption_of(moment) == "score 21   step 12   value -0.50"
    frame = Captions().frame(moment)
    assert frame.shape[1] % 2 == frame.shape[0] % 2 == 0 and frame.shape[1] == 81 * 4
    one, other = (Captions().frame(moment._replace(score=s))[-30:] for s in (1.0, 2.0))
    assert not np.array_equal(one, other), "what is written can be seen"


def test_what_has_no_pictures_is_evaluated_without(finished):
    assert call("eval", finished, "--episodes", "2", "--json").json["video"] is None
    refused = call("record", finished)
    assert refused.code == 2 and "cannot be shown" in refused.err


@pytest.mark.accept(146)
def test_games_are_recorded_in_colour(tmp_path):
    pytest.importorskip("ale_py", reason=REASONS["atari"])
    small = ("steps=20", "env.num=1", "env.atari.size=36", "warmup=10", "capacity=100")
    path = run(tiny("dqn", "pong", *small), tmp_path).path
    answer = call("record", path, "--protocol", "saber", "--minutes", "0.02", "--json")
    result = answer.json[0]
    frames, meta = decoded(result["path"])
    assert meta["fps"] == 15 and len(frames) == result["frames"] == 18
    assert meta["size"] == (320, 420 + 28), "the screen twice as large, and a line"
    red, green, blue = frames[-1][200, 100].astype(int)
    assert red > green > blue, "Pong's field is brown"


# The window.
@pytest.fixture
def screen(tmp_path):
    """A display nobody sees, with its pixels in a file."""
    skip_without("xvfb", shutil.which("Xvfb"))
    result, tells = os.pipe()
    shown = ("-screen", "0", "800x600x24", "-fbdir", str(tmp_path), "-nolisten", "tcp")
    command = ["Xvfb", "-displayfd", str(tells), *shown]
    server = kept(subprocess.Popen(command, pass_fds=[tells], stderr=subprocess.DEVNULL))
    os.close(tells)
    with os.fdopen(result) as pipe:
        number = pipe.readline().strip()  # when it is ready; the first that is free
    assert number, "Xvfb does not start"
    file = tmp_path / "Xvfb_screen0"
    yield f":{number}", file
    server.terminate()
    server.wait(10)


def pixels(file) -> np.ndarray:
    """The framebuffer, as X writes window dumps: a header, a colour map, then rows."""
    data = file.read_bytes()
    head = struct.unpack(">25I", data[:100])
    height, width, line, colors = head[5], head[4], head[12], head[19]
    raw = np.frombuffer(data, np.uint8, height * line, head[0] + 12 * colors)
    return raw.reshape(height, line)[:, : width * 4].reshape(height, width, 4)[..., :3]


@pytest.mark.accept(122)
def test_play_under_a_display(cart, screen):
    display, file = screen
    others = ("WAYLAND_DISPLAY", "SDL_VIDEODRIVER")
    plain = {name: value for name, value in os.environ.items() if name not in others}
    words = ("play", cart, "--episodes", "3", "--speed", "0.5", "--seed", "7")
    game = subprocess.Popen(
        [sys.executable, "-m", "ludus", *map(str, words)],
        env={**plain, "DISPLAY": display},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    kept(game)
    most = 0
    while game.poll() is None:
        most = max(most, int((pixels(file) > 200).all(-1).sum()))
        time.sleep(0.05)
    out, err = game.communicate()
    assert game.returncode == 0, err
    scores = [float(x) for x in re.findall(r"score (\S+),", out)]
    assert scores == load_agent(cart).evaluate(3, seed=7).scores
    assert most > 100_000, "CartPole's white picture was on the screen"


def test_play_without_a_display_says_so(cart, monkeypatch):
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("SDL_VIDEODRIVER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    answer = call("play", cart)
    assert answer.code == 2 and "error[E104] there is no display" in answer.err
    assert "ludus record" in answer.err


def test_play_ends_with_its_window(cart, monkeypatch):
    pygame = pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    agent = load_agent(cart)
    games = film.play(agent, agent.rules(), seed=1, speed=100)
    next(games)
    pygame.event.post(pygame.event.Event(pygame.QUIT))
    assert list(games) == [] and pygame.display.get_surface() is None
