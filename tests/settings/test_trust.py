"""Code that a file names runs only if the command names it too. A canary shows what was run."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path

import gymnasium as gym
import pytest
import safetensors.torch
import yaml

import ludus
from ludus import registry
from ludus.envs.test_envs import PROBES
from ludus.errors import LudusError
from ludus.evals.agent import load_agent
from ludus.settings.resolve import from_file
from ludus.settings.trust import NOTHING, Trust
from tests.cli.conftest import call

CODE = """
from pathlib import Path
Path("canary").touch()
import gymnasium as gym
from ludus.envs.test_envs import PROBES
from ludus.registry import Entry, register
class Env(PROBES["ludus/Identity-v0"]):
    def __init__(self, size=1):
        super().__init__()
class Wrap(gym.Wrapper):
    pass
def build(size=1):
    Path("called").touch()
    return Env()
if "Stranger-v0" not in gym.registry:
    gym.register("Stranger-v0", entry_point=Env)
register(Entry("own", "ludus.algos.dqn:DQN", "ludus.algos.dqn:Config", "for a test"))
"""
PLAIN = "ludus/Identity-v0"
KINDS = {
    "class": ["dqn", "stranger:Env"],
    "registered": ["dqn", "stranger:Stranger-v0"],
    "wrapper": ["dqn", PLAIN, "env.wrappers=[{name: 'stranger:Wrap'}]"],
    "import": ["own", PLAIN, "--import", "stranger"],
}
SMALL = ["steps=60", "warmup=20", "batch=4", "tensorboard=off", "-q"]
PLACES = {
    "run": lambda run: run,
    "checkpoint": lambda run: max((run / "checkpoints").glob("0*")),
    "file": lambda run: max((run / "checkpoints").glob("0*")) / "model.safetensors",
}


def forget(monkeypatch):
    """As a new process would know it: nothing of the stranger's module."""
    table = {k: v for k, v in registry._TABLE.items() if k != "own"}
    monkeypatch.setattr(registry, "_TABLE", table)
    sys.modules.pop("stranger", None)
    gym.registry.pop("Stranger-v0", None)
    for name in ("canary", "called"):
        Path(name).unlink(missing_ok=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of each kind. They are copied, and never changed."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "stranger.py").write_text(CODE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", list(sys.path))
        patch.setattr(registry, "_TABLE", dict(registry._TABLE))
        for kind, words in KINDS.items():
            answer = call("train", *words, *SMALL, "--run", kind)
            assert answer.code == 0, answer.err
        forget(patch)
    return folder


@pytest.fixture
def given(made, tmp_path, monkeypatch):
    """The folder that somebody downloaded and is in; this process knows nothing of its code."""
    folder = tmp_path / "given"
    shutil.copytree(made, folder, symlinks=True)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr("ludus.envs.render.viewer.check_display", lambda: None)
    forget(monkeypatch)
    yield folder
    forget(monkeypatch)


VERBS = {
    "eval": ["--episodes", "1", "--no-video"],
    "record": ["--minutes", "0.001"],
    "play": ["--episodes", "1"],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_runs_no_code_of_a_file(given, verb, kind):
    for place in PLACES.values():
        path = place(given / "runs" / kind)
        answer = call(verb, path, *VERBS[verb])
        assert not Path("canary").exists()
        assert answer.code == 2 and "E111" in answer.err and "stranger" in answer.err
        typed = shlex.join(["ludus", verb, str(path), *VERBS[verb]])
        assert f"{typed} --import stranger " in answer.err and f"{typed} --trust" in answer.err
        assert "state.json" not in answer.err


@pytest.mark.parametrize("kind", KINDS)
def test_resume_runs_no_code_of_a_file(given, kind):
    answer = call("resume", kind, "steps=+20", "-q")
    assert not Path("canary").exists()
    assert answer.code == 2 and "E111" in answer.err
    assert f"ludus resume {kind} steps=+20 -q --import stranger" in answer.err
    assert f"{kind} refers to code you have not allowed: stranger" in answer.err


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", PLACES)
def test_python_runs_no_code_of_a_file(given, kind, place):
    path = PLACES[place](given / "runs" / kind)
    calls = [lambda: ludus.load(path), lambda: ludus.evaluate(path, episodes=1)]
    calls += [lambda: load_agent(path)]
    calls += [lambda: ludus.resume(path, steps="+20")] if place == "run" else []
    for one in calls:
        with pytest.raises(LudusError) as caught:
            one()
        assert caught.value.code == "E111" and "imports=['stranger']" in caught.value.fix
        assert not Path("canary").exists()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("words", [["--trust"], ["--import", "stranger"]], ids=lambda w: w[0])
def test_what_the_command_names_is_used(given, monkeypatch, kind, words):
    for command in (
        ["eval", kind, "--episodes", "1", "--no-video"],
        ["eval", PLACES["file"](given / "runs" / kind), "--episodes", "1", "--no-video"],
        ["resume", kind, "steps=+20", "-q"],
    ):
        forget(monkeypatch)
        answer = call(*command, *words)
        assert answer.code == 0, answer.err
        assert Path("canary").exists()


def my_env(data=""):
    return PROBES["ludus/Identity-v0"]()


def test_a_run_of_this_process_needs_no_trust(tmp_path):
    """A function and a path are refused in a file; here the user has given both."""
    here = {"runs_dir": tmp_path, "quiet": True}
    cfg = ludus.config("dqn", my_env, steps=100, warmup=40, batch=8, **{"env.args.data": "a/b"})
    run = ludus.train(cfg, **here)
    assert len(run.last.eval(episodes=1).scores) == 1 and run.last.load().step == run.step
    with pytest.raises(LudusError, match="E111"):
        ludus.load(run.path)


def test_python_names_modules_or_trusts(given, monkeypatch):
    for how in ({"trust": True}, {"imports": ["stranger"]}):
        forget(monkeypatch)
        assert ludus.load("runs/class", **how).spec.id == "stranger:Env"
        assert ludus.evaluate("runs/class", episodes=1, **how).scores
        assert ludus.resume("runs/class", steps="+20", quiet=True, **how).step >= 80


def test_another_module_that_is_named_does_not_let_the_file_in(given):
    Path("mine.py").write_text("")
    answer = call("eval", "class", "--episodes", "1", "--import", "mine")
    assert "E111" in answer.err and not Path("canary").exists()


def test_the_same_command_again_names_what_it_names(given, monkeypatch):
    for kind, words in KINDS.items():
        forget(monkeypatch)
        answer = call("train", *words, *SMALL, "steps=80", "--run", kind)
        assert answer.code == 0, answer.err


def test_a_run_of_that_name_imports_nothing(given, monkeypatch):
    """`--run NAME` finds a run that may be a stranger's; its imports are not the command's."""
    answer = call("train", "own", PLAIN, *SMALL, "--run", "import")
    assert answer.code == 2 and "E111" in answer.err and not Path("canary").exists()
    assert f"ludus train own {PLAIN} {' '.join(SMALL)} --run import --import stranger" in answer.err
    config = given / "runs" / "class" / "config.yaml"
    tree = yaml.safe_load(config.read_text())
    tree["env"]["id"], tree["run"]["imports"] = PLAIN, ["stranger"]
    config.write_text(yaml.safe_dump(tree))
    answer = call("train", "dqn", PLAIN, *SMALL, "--run", "class")
    assert answer.code == 2 and "E111" in answer.err and not Path("canary").exists()
    assert call("train", "own", PLAIN, *SMALL, "--run", "import", "--trust").code == 0


def test_a_run_in_python_knows_its_own_code(given):
    """Who trained it in this process need not name it again."""
    cfg = ludus.config("dqn", "stranger:Env", steps=60, warmup=20, batch=4, tensorboard=False)
    run = ludus.train(cfg, run="here", quiet=True)
    assert run.last.load().spec.id == "stranger:Env" and run.config.env.id == "stranger:Env"
    assert run.last.eval(episodes=1).scores


@pytest.mark.parametrize("kind", KINDS)
def test_commands_that_are_printed_work(given, monkeypatch, kind):
    """The line `next:` of a run with code of the user's own, and `resume` of its status."""
    for words in (["train", *KINDS[kind], *SMALL], ["resume", kind, "steps=+20", "--trust", "-q"]):
        answer = call(*words)
        result = next(line for line in answer.out.splitlines() if line.startswith("next:"))
        evaluate, resume = result.removeprefix("next:").strip().split("   ")
        for command in (evaluate, resume):
            assert command.endswith(" --import stranger")
        forget(monkeypatch)
        short = ["--episodes", "1", "--no-video"]
        assert call(*shlex.split(evaluate)[1:], *short).code == 0
    forget(monkeypatch)
    result = call("status", kind, "--json").json["resume"]
    assert not Path("canary").exists()
    assert result.endswith(f"runs/{kind} --import stranger")
    assert call(*shlex.split(result)[1:], "steps=+20", "-q").code == 0


def test_the_command_of_a_run_that_failed_works(given, monkeypatch):
    """E205 and status.json, which is written by the run itself."""
    Path("stranger.py").write_text(f"""{CODE}
class Weak(Env):
    steps = 0
    def step(self, action):
        Weak.steps += 1
        if Weak.steps == 50:
            raise RuntimeError("weak")
        return super().step(action)
""")
    answer = call("train", "dqn", "stranger:Weak", *SMALL, "--run", "weak", "--runs-dir", "my runs")
    assert answer.code == 3 and "E205" in answer.err
    result = f"ludus resume '{given}/my runs/weak' --import stranger"
    assert f"{result}  goes on" in answer.err and f"{result} env.on_error=restart" in answer.err
    status = json.loads(Path("my runs/weak/status.json").read_text())
    assert status["resume"] == result
    forget(monkeypatch)
    assert call(*shlex.split(result)[1:], "-q").code == 0


def test_so_does_the_command_after_actors_failed(given):
    """The fleet does not know which flags a run needs."""
    from ludus.run.recording.messages import env_failed
    from ludus.settings.resolve import read_config
    from ludus.track.run_dir.rundir import RunDir

    place = RunDir(given / "runs" / "class")
    fix = f"look at {place.path}/crash, then  ludus resume {place.path} ; actor.restarts=N"
    result = env_failed(LudusError("E206", "x", fix=fix), read_config(place.config), place, 3)
    assert f"ludus resume {place.path} --import stranger ; actor.restarts=N" in str(result)
    assert result.exit_code == 3


def test_a_path_that_only_trust_allows_is_printed_so(given, monkeypatch):
    text = json.loads(Path("runs/class/status.json").read_text())["resume"]
    assert text.endswith("runs/class --import stranger")
    answer = call("train", "dqn", "stranger:build", *SMALL, "--run", "made")
    assert answer.code == 0, answer.err
    text = json.loads(Path("runs/made/status.json").read_text())["resume"]
    assert text.endswith("runs/made --trust")


def test_status_says_that_a_module_is_code(given):
    for words in ([], ["--json"]):
        answer = call("status", "class", *words)
        assert "--import stranger" in answer.out and "code that the run names" in answer.out
    Path("stranger.py").unlink()
    own = call("train", "dqn", PLAIN, *SMALL, "--json").json["path"]
    assert "code" not in call("status", own).out
    refused = call("stop", "class")
    assert "runs/class --import stranger  continues it" in refused.err


def test_a_function_of_the_users_own_is_printed_with_trust(given, monkeypatch):
    answer = call("train", "dqn", "stranger:build", *SMALL, "--run", "made")
    assert "runs/made --trust " in answer.out, answer.err
    forget(monkeypatch)
    assert call("eval", "runs/made", "--episodes", "1", "--no-video", "--trust").code == 0


def test_a_module_is_listed_once_and_secrets_of_the_command_are_hidden(given, monkeypatch):
    assert call("resume", "class", "steps=+20", "-q", "--import", "stranger").code == 0
    forget(monkeypatch)
    answer = call("resume", "class", "steps=+20", "env.args.api_key=abc")
    assert "allowed: stranger:Env\n" in answer.err and "abc" not in answer.err
    assert "--import stranger --import" not in answer.err


def test_the_error_says_how_to_find_a_module_of_another_folder(given, monkeypatch):
    (given / "elsewhere").mkdir()
    monkeypatch.chdir(given / "elsewhere")
    for words in (["eval", "../runs/class", "--import", "stranger"], ["check", "stranger:Env"]):
        answer = call(*words)
        result = answer.err + answer.out
        assert "cd to the folder that holds it" in result and "PYTHONPATH=" in result


HOSTILE = {
    "shell": {"id": "subprocess:Popen", "args": {"args": ["touch", "canary"]}},
    "function": {"id": "os:system", "args": {"command": "touch canary"}},
    "wrapper": {"id": PLAIN, "wrappers": [{"name": "subprocess:Popen", "options": {}}]},
    "path": {"id": PLAIN, "args": {"file": "/etc/passwd"}},
    "nested path": {"id": PLAIN, "args": {"files": [{"a": "../x"}]}},
    "nested id": {"id": PLAIN, "args": {"env_id": "stranger:Env"}},
    "address with a mask": {"id": PLAIN, "args": {"url": "http://evil/", "b": "http://a:***@evil"}},
    "home": {"id": PLAIN, "args": {"file": "~"}},
    "writing wrapper": {
        "id": PLAIN, "wrappers": [{"name": "RecordVideo", "options": {"video_folder": "canary"}}],
    },
    "secret path": {"id": PLAIN, "args": {"password": "/etc/passwd"}},
    "path with a query": {"id": PLAIN, "args": {"file": "/etc/passwd?token=x"}},
    "path in a table of secrets": {"id": PLAIN, "args": {"auth": {"file": "/etc/passwd"}}},
    "secret path of a wrapper": {
        "id": PLAIN, "wrappers": [{"name": "Repeat", "options": {"token": "../x"}}],
    },
    "window": {"id": "CartPole-v1", "args": {"render_mode": "human"}},
    "window wrapper": {"id": PLAIN, "wrappers": [{"name": "HumanRendering", "options": {}}]},
    "path of a wrapper": {"id": PLAIN, "wrappers": [{"name": "Repeat", "options": {"times": "/"}}]},
}  # fmt: skip


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
def test_a_header_or_state_calls_nothing(given, hostile):
    """The header of a lone file, and state.json and config.yaml, which say the same."""
    from ludus.settings.resolve import from_file
    from ludus.settings.trust import Trust

    agent = load_agent(given / "runs" / "class", trust=Trust(whole=True))
    forget(pytest.MonkeyPatch())
    tree = agent.cfg.tree()
    tree["env"] |= hostile
    with pytest.raises(LudusError) as caught:
        from_file(tree, "state.json", Trust())
    assert caught.value.code == "E111" and not Path("canary").exists()
    file = given / "hostile.safetensors"
    result = json.dumps({"config": tree, "step": 60})
    safetensors.torch.save_file(agent.net.state_dict(), file, {"ludus": result})
    answer = call("eval", file, "--episodes", "1")
    assert answer.code != 0 and not Path("canary").exists()


def test_pictures_of_a_file_are_no_window(given):
    from ludus.settings.resolve import Request as Asked
    from ludus.settings.resolve import from_file, resolve
    from ludus.settings.trust import Trust, needs_whole

    for mode in ("rgb_array", None):
        typed = [("env.args.render_mode", mode)]
        cfg = resolve(Asked("dqn", "CartPole-v1", typed, environ={})).config
        assert from_file(cfg.tree(), "state.json", Trust()).env.args == {"render_mode": mode}
        assert not needs_whole(cfg)
    cfg = resolve(Asked("dqn", "CartPole-v1", ["env.args.render_mode=human"], environ={})).config
    assert needs_whole(cfg), "the commands that are printed have --trust"
    with pytest.raises(LudusError) as caught:
        from_file(cfg.tree(), "state.json", Trust(command="ludus eval x"))
    assert "window" in caught.value.what and "ludus eval x --trust" in caught.value.fix


def test_bytes_of_a_config_are_refused(given):
    config = given / "runs" / "wrapper" / "config.yaml"
    tree = yaml.safe_load(config.read_text())
    tree["env"] |= {"wrappers": [], "args": {"size": b"/etc/passwd"}}
    config.write_text(yaml.safe_dump(tree))
    answer = call("resume", "wrapper", "steps=+20", "-q")
    assert answer.code == 2 and "E102" in answer.err and "env.args.size" in answer.err
    assert "config.yaml:" in answer.err


def test_settings_of_a_file_are_bounded():
    """A map of 9 MB in a header made an environment of 2 GB."""
    from ludus.settings.resolve import Request as Asked
    from ludus.settings.resolve import from_file, resolve
    from ludus.settings.trust import Trust

    tree = resolve(Asked("dqn", "FrozenLake-v1", [], environ={})).config.tree()
    assert from_file(tree, "state.json", Trust()).env.id == "FrozenLake-v1"
    tree["env"]["args"] = {"desc": ["S" + "F" * 998 + "G"] * 1000}
    with pytest.raises(LudusError, match="E105"):
        from_file(tree, "state.json", Trust())


def test_named_modules_let_only_classes_of_theirs_be_called(given):
    """--import vouches for a module, not for each of its functions with any arguments."""
    from ludus.settings.resolve import from_file
    from ludus.settings.trust import Trust

    tree = load_agent(given / "runs" / "class", trust=Trust(whole=True)).cfg.tree()
    tree["env"]["id"] = "stranger:build"
    with pytest.raises(LudusError) as caught:
        from_file(tree, "state.json", Trust(("stranger",)))
    assert caught.value.code == "E111" and "--trust" not in caught.value.fix
    assert "trust=True" in caught.value.fix and not Path("called").exists()
    assert from_file(tree, "state.json", Trust(whole=True)).env.id == "stranger:build"


@pytest.mark.parametrize("target", ["subprocess:Popen", "os:system", "stranger:CODE"])
def test_only_environments_are_called_even_when_typed(given, target):
    Path("stranger.py").write_text(f"{CODE}\nclass CODE:\n    def __init__(self):\n        1 / 0\n")
    answer = call("check", target)
    assert answer.code == 1 and "is not a gymnasium.Env, and is not called" in answer.out
    made = call("train", "dqn", target, 'env.args={args: "touch called"}', *SMALL)
    assert "E201" in made.err and not Path("called").exists()


def test_only_wrappers_are_called_even_when_typed(given):
    for target in ("stranger:build", "subprocess:Popen"):
        wrapper = f"env.wrappers=[{{name: '{target}'}}]"
        answer = call("train", "dqn", PLAIN, wrapper, *SMALL)
        assert "E201" in answer.err and "gymnasium.Wrapper" in answer.err
        assert not Path("called").exists()


def test_a_name_from_a_file_is_shown_without_its_escapes(given):
    from ludus.settings.resolve import from_file
    from ludus.settings.trust import Trust

    tree = load_agent(given / "runs" / "class", trust=Trust(whole=True)).cfg.tree()
    tree["env"]["id"] = "\x1b[2Jx; rm -rf $HOME\n:Env"
    with pytest.raises(LudusError) as caught:
        from_file(tree, "state.json", Trust(command="ludus eval x"))
    assert "\x1b" not in str(caught.value) and "rm" not in caught.value.fix


@pytest.mark.parametrize("verb", ["ls", "status", "report", "compare", "config diff"])
def test_verbs_that_only_read_import_nothing(given, verb):
    words = {"compare": ["class", "wrapper"], "config diff": ["runs/class", "runs/wrapper"]}
    answer = call(*verb.split(), *words.get(verb, [] if verb == "ls" else ["class"]))
    assert "E111" not in answer.err and not Path("canary").exists()
    assert answer.code == (1 if verb == "config diff" else 0), answer.err


def test_a_bench_starts_what_was_typed(given, monkeypatch):
    """bench.json may say that a cell of that name is another algorithm, environment or setting."""
    from ludus.bench.matrix import merged
    from ludus.bench.plan import BenchRequest, plan_matrix

    wish = BenchRequest((PLAIN,), ("dqn",), seeds=(1,), settings=("steps=60",))
    planned, _ = plan_matrix(wish, given / "b")
    (given / "b").mkdir()
    planned.save()
    result = json.loads(planned.path.read_text())
    for change in (
        {"env": "stranger:Env"}, {"algo": "own"}, {"swept": ["run.imports=[stranger]"]}, {"seed": 2}
    ):  # fmt: skip
        cells = [{**result["cells"][0], **change}]
        planned.path.write_text(json.dumps({**result, "cells": cells}))
        with pytest.raises(LudusError) as caught:
            merged(plan_matrix(wish, given / "b")[0])
        assert caught.value.code == "E307"


def test_a_cluster_that_a_file_names_is_not_joined():
    """Whoever has a cluster can run programs on the machines that join it."""
    at = {"run.fleet": "ray", "ray.address": "10.0.0.1:6379"}
    tree = ludus.config("dqn", "CartPole-v1", **at).tree()
    with pytest.raises(LudusError, match="names a Ray cluster") as caught:
        from_file(tree, "x/config.yaml", NOTHING)
    assert caught.value.code == "E111" and caught.value.where == "ray.address"
    assert from_file(tree, "x/config.yaml", Trust(whole=True)).ray.address == "10.0.0.1:6379"
    local = ludus.config("dqn", "CartPole-v1", **{"run.fleet": "ray"}).tree()
    assert from_file(local, "x/config.yaml", NOTHING).run.fleet == "ray"
