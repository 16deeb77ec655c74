"""Every option of every verb changes something. `changes` names the options a test covers, and
the last test finds any that no test names."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
import typer.main

from ludus.cli import main, output
from ludus.track.run_dir.lock import RunLock
from tests.cli import test_flags_cluster
from tests.cli.conftest import call, train
from tests.cli.covered import COVERED, changes

assert test_flags_cluster, "it adds to COVERED when it is imported"


def dry(*words):
    answer = call("train", "dqn", "CartPole-v1", "--dry-run", "--json", *words)
    assert answer.code == 0, answer.err
    return answer.json


@changes("train --config", "train -c", "train --preset", "train --seed", "train --dry-run")
def test_settings(tmp_path, runs):
    file = tmp_path / "a.yaml"
    file.write_text("algo: {batch: 17}")
    plain = dry()
    assert dry("--config", file)["config"]["algo"]["batch"] == 17
    assert dry("-c", file)["sources"]["algo.batch"] == f"{file}:1"
    assert dry("--seed", "5")["config"]["run"]["seed"] == 5 != plain["config"]["run"]["seed"]
    assert dry("--preset", "none")["preset"] is None
    assert plain["replay_bytes"] > 0 and plain["parameters"] > 0
    shown = call("train", "dqn", "CartPole-v1", "seed=5", "--dry-run", "--runs-dir", runs)
    assert not runs.exists()
    line = next(x for x in shown.out.splitlines() if x.startswith("run.seed"))
    assert line.split() == ["run.seed", "5", "command", "line"]
    assert "memory" in shown.out


@pytest.mark.accept(139)
@changes("train --run", "train --fresh", "train --init-from", "train --runs-dir", "train --json")
def test_the_same_command_resumes(runs):
    def events(path):
        return [json.loads(x) for x in (path / "events.jsonl").read_text().splitlines()]

    first = train(runs, "--run", "night").json
    path = runs / "night"
    assert first["path"] == str(path.resolve()) and first["step"] >= 240
    assert [e["step"] for e in events(path) if e["kind"] in ("start", "resume")] == [0]
    again = train(runs, "--run", "night", "steps=360").json
    starts = [(e["kind"], e["step"]) for e in events(path) if e["kind"] in ("start", "resume")]
    assert starts == [("start", 0), ("resume", first["step"])] and again["step"] >= 360
    fresh = train(runs, "--run", "night", "--fresh").json
    assert fresh["step"] == first["step"]
    assert [e["kind"] for e in events(path) if e["kind"] in ("start", "resume")] == ["start"]
    assert (runs / "night.1" / "checkpoints").is_dir(), "the earlier run is kept"


@pytest.mark.accept(139)
def test_weights_of_another_run(runs, finished):
    from ludus.track.checkpoint.reader import load

    # Too short to learn: the weights at its end are those it started from.
    words = ("steps=20", "--init-from", str(finished))
    started = load(train(runs, *words).json["path"]).tensors["model"]
    blank = load(train(runs, "steps=20").json["path"]).tensors["model"]
    source = load(finished).tensors["model"]
    assert all((started[k] == source[k]).all() for k in source)
    assert any((blank[k] != source[k]).any() for k in source)


@changes("train --quiet", "train -q", "resume --quiet", "resume -q")
def test_quiet(runs):
    small = ["steps=60", "warmup=20", "batch=8", "tensorboard=off", "--runs-dir", runs]
    loud = call("train", "dqn", "ludus/Identity-v0", *small, "--run", "x")
    quiet = call("train", "dqn", "ludus/Identity-v0", *small, "-q")
    assert len(quiet.out + quiet.err) < len(loud.out + loud.err)
    assert "results:" in quiet.out
    more = call("resume", "x", "steps=+20", "--runs-dir", runs)
    less = call("resume", "x", "steps=+20", "--quiet", "--runs-dir", runs)
    assert len(less.out + less.err) < len(more.out + more.err)


@changes("train --callback", "resume --callback", "resume --runs-dir", "resume --json")
def test_callbacks(runs):
    target = "tests.cli.parts:StopAtOnce"
    stopped = train(runs, "--callback", target, "--run", "x").json
    assert stopped["step"] < 240 and stopped["reason"] == "at once"
    words = ("resume", "x", "steps=+500", "--runs-dir", runs, "--json", "-q")
    assert call(*words, "--callback", target).json["reason"] == "at once"


@changes("resume --at")
def test_going_back(runs):
    path = Path(train(runs, "--run", "x").json["path"])
    words = ("resume", "x", "--runs-dir", runs, "--json", "-q")
    assert call(*words).json["reason"] == "already finished"
    again = call(*words, "--at", "120").json
    assert (again["reason"], again["step"]) == ("finished", 240)
    assert (path / "abandoned-1" / "checkpoints" / "000000000240").is_dir()


IMPORTED = [
    ("train", ["train", "mine", "CartPole-v1", "--dry-run"]),
    ("list", ["list", "algos"]),
    ("show", ["show", "mine"]),
    ("config schema", ["config", "schema", "mine"]),
]


@changes(*(f"{verb} --import" for verb, _ in IMPORTED))
@pytest.mark.parametrize(("verb", "words"), IMPORTED, ids=[v for v, _ in IMPORTED])
def test_imports(monkeypatch, verb, words):
    import sys

    from ludus import registry

    monkeypatch.setattr(registry, "_TABLE", dict(registry._TABLE))
    before = call(*words)
    assert before.code != 0 or "mine" not in before.out
    sys.modules.pop("tests.cli.registers_mine", None)
    after = call(*words, "--import", "tests.cli.registers_mine")
    assert after.code == 0 and "mine" in after.out


@changes("resume --import", "eval --import", "check --import", "play --import", "record --import")
@changes("config diff --import")
@pytest.mark.parametrize(
    "words",
    [["resume", "x"], ["eval", "x"], ["check", "CartPole-v1"], ["play", "x"], ["record", "x"],
     ["config", "diff", "x", "x"]],
)  # fmt: skip
def test_imports_come_first(words, monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    answer = call(*words, "--import", "no_such_module")
    assert answer.code == 2 and "E109" in answer.err


@changes("train --trust", "resume --trust", "eval --trust", "play --trust", "record --trust")
@pytest.mark.parametrize("verb", ["train", "resume", "eval", "play", "record"])
def test_trust_reaches_what_opens_files(verb, finished, monkeypatch):
    """test_trust.py shows that it decides there."""
    seen = []
    monkeypatch.setattr("ludus.envs.render.viewer.check_display", lambda: None)
    for module in ("training", "evaluating", "play"):
        name = f"ludus.cli.{module}.trust_of"
        monkeypatch.setattr(name, lambda imports, whole, words=None: seen.append(whole) or 1 / 0)
    words = ["dqn", "CartPole-v1"] if verb == "train" else [finished]
    for more in ([], ["--trust"]):
        call(verb, *words, *more)
    assert seen == [False, True]


@changes(
    "eval --episodes",
    "eval --checkpoint",
    "eval --seed",
    "eval --epsilon",
    "eval --sample",
    "eval --runs-dir",
    "eval --json",
)
@pytest.mark.accept(123)
def test_eval(finished, tmp_path):
    def play(*words):
        answer = call(
            "eval",
            finished.name,
            "--runs-dir",
            finished.parent,
            "--json",
            "--episodes",
            "4",
            *words,
        )
        assert answer.code == 0, answer.err
        return answer.json

    plain = play()
    assert len(plain["scores"]) == 4 and plain["mean"] == sum(plain["scores"]) / 4
    assert play("--seed", "3")["seeds"] != play("--seed", "4")["seeds"]
    first = min(p for p in (finished / "checkpoints").iterdir() if p.name.isdigit())
    assert play("--checkpoint", str(int(first.name)))["step"] == int(first.name) < plain["step"]
    assert play("--epsilon", "0.5")["epsilon"] == 0.5
    words = ("agent:cartpole-ppo", "--sample", "--episodes", "2", "--no-video", "--out", tmp_path)
    drawn = call("eval", *words, "--json").json
    assert drawn["sample"] is True and plain["sample"] is False
    assert (tmp_path / f"sample-{drawn['step']}.json").is_file()
    assert ", actions sampled" in call("eval", *words).out
    refused = call("eval", finished, "--sample")
    assert refused.code == 2 and "E104" in refused.err and "--sample" in refused.err
    alone = call("eval", first, "--episodes", "2", "--json")
    assert alone.json["step"] == int(first.name)
    assert "mean" in call("eval", finished, "--episodes", "2").out


@changes("eval --render")
def test_eval_shows_what_has_pictures(finished, monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    assert call("eval", finished, "--episodes", "2", "--render", "none").code == 0
    answer = call("eval", finished, "--episodes", "2", "--render", "one")
    assert answer.code == 2 and "cannot be shown" in answer.err and "--render" in answer.err


PLAYED = ("checkpoint", "seed", "epsilon", "sample", "config", "runs-dir")


@changes(*(f"play --{name}" for name in (*PLAYED, "protocol", "speed")))
@changes(*(f"record --{name}" for name in PLAYED))
@pytest.mark.parametrize("verb", ["play", "record"])
def test_who_plays_and_how(verb, finished, monkeypatch):
    """What the verbs hand on; what comes of it is in tests/evals/test_film.py."""
    from ludus.evals import film

    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setattr(film, "check_video", lambda: None)
    asked = []
    monkeypatch.setattr(film, verb, lambda *a, **how: asked.append((*a[:2], how)) or iter(()))
    first = min(p for p in (finished / "checkpoints").iterdir() if p.name.isdigit())

    def go(*words):
        root = ("--runs-dir", finished.parent)
        answer = call(verb, finished.name, *root, *words)
        assert answer.code == 0, answer.err
        return asked[-1]

    agent, rules, how = go()
    assert (agent.step, rules.epsilon, rules.sample) > (0, 0, False)
    assert go("--checkpoint", str(int(first.name)))[0].step == int(first.name) < agent.step
    assert go("--seed", "3")[2]["seed"] == 3 != how["seed"]
    assert go("--epsilon", "0.25")[1].epsilon == 0.25
    assert call(verb, "agent:cartpole-ppo", "--sample").code == 0 and asked[-1][1].sample is True
    refused = call(verb, finished, "--sample")
    assert refused.code == 2 and "E104" in refused.err
    assert go("env.max_episode_steps=7")[1].env.max_episode_steps == 7
    other = finished.parent / "other.yaml"
    other.write_text((finished / "config.yaml").read_text().replace("seed: 1", "seed: 9"))
    assert go("--config", other)[0].cfg.run.seed == 9 != agent.cfg.run.seed
    refused = call(verb, finished, "--protocol", "saber")
    assert refused.code == 2 and "is for Atari games" in refused.err
    if verb == "play":
        assert go("--speed", "3")[2]["speed"] == 3 != how["speed"]


@changes("train --insecure")
def test_an_insecure_cluster():
    assert dry("--insecure", "fleet=ray")["config"]["ray"]["insecure"] is True
    assert dry("fleet=ray")["config"]["ray"]["insecure"] is False


@changes("train --watch", "resume --watch")
@pytest.mark.accept(122)
def test_watch_is_a_word_for_render(runs, monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    assert dry()["config"]["env"]["render"] == "none"
    for word in ("none", "one", "all"):
        result = dry("--watch", word)
        assert result["config"]["env"]["render"] == word
    refused = call("train", "dqn", "CartPole-v1", "--watch", "some", "--dry-run")
    assert refused.code == 2 and "env.render" in refused.err
    train(runs, "--run", "x", "steps=40", env="CartPole-v1")
    more = ("--runs-dir", runs, "-q", "--json")
    assert call("resume", "x", "steps=+20", "--watch", "one", *more).code == 0
    assert "render: one" in (runs / "x" / "config.yaml").read_text()


@changes("ls --runs-dir", "ls --sort", "ls --json", "status --runs-dir", "status --json")
def test_runs(runs):
    assert "no runs" in call("ls", "--runs-dir", runs).out
    for name, steps in (("b", 100), ("a", 50)):
        train(runs, "--run", name, f"steps={steps}")
    by = {
        key: [r["name"] for r in call("ls", "--runs-dir", runs, "--json", "--sort", key).json]
        for key in ("age", "name", "step")
    }
    assert by == {"age": ["b", "a"], "name": ["a", "b"], "step": ["a", "b"]}
    assert "finished" in call("ls", "--runs-dir", runs).out
    assert "nothing is running" in call("status", "--runs-dir", runs).out
    with RunLock(runs / "a"):
        assert [r["name"] for r in call("status", "--runs-dir", runs, "--json").json] == ["a"]
    assert f"ludus resume {runs / 'a'}" in call("status", "a", "--runs-dir", runs).out
    moved = (runs / "a").rename(runs.parent / "elsewhere")
    assert call("status", moved, "--json").json["resume"] == f"ludus resume {moved}"


@changes("logs --follow", "logs -f", "logs --lines", "logs -n", "logs --runs-dir")
def test_logs(finished, runs):
    words = ("logs", finished.name, "--runs-dir", finished.parent)
    whole = call(*words).out
    assert whole == (finished / "log.txt").read_text()
    assert call(*words, "-n", "1").out == whole.splitlines()[-1] + "\n"
    place = runs / "x"
    (place / "checkpoints").mkdir(parents=True)
    (place / "log.txt").write_text("one\n")

    def write():
        with RunLock(place):
            ready.set()
            time.sleep(0.3)
            with (place / "log.txt").open("a") as file:
                file.write("two\n")

    ready = threading.Event()
    writer = threading.Thread(target=write)
    writer.start()
    ready.wait(10)
    followed = call("logs", "x", "-f", "--runs-dir", runs).out
    writer.join()
    assert followed == "one\ntwo\n"


@changes("report --out", "report -o", "report --title", "report --runs-dir", "report --json")
def test_report(finished, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("report", finished.name, "--runs-dir", finished.parent)
    assert "report.html" in call(*words).out and (tmp_path / "report.html").is_file()
    result = call(*words, "-o", "a/b.html", "--title", "Mine & yours", "--json").json
    page = tmp_path / "a" / "b.html"
    assert result == {
        "path": str(page), "bytes": page.stat().st_size, "runs": [finished.name]
    }  # fmt: skip
    assert "<h1>Mine &amp; yours</h1>" in page.read_text()
    assert call(*words, "--out", "c.html").code == 0 and (tmp_path / "c.html").is_file()
    refused = call("report", "nothing-like-it", "--runs-dir", finished.parent)
    assert refused.code == 1 and "E303" in refused.err


@changes("report --embed-videos")
def test_report_with_videos(runs, tmp_path):
    path = Path(train(runs, "--run", "x").json["path"])
    (path / "videos").mkdir()
    (path / "videos" / "a.mp4").write_bytes(b"film")
    pages = []
    for words in ((), ("--embed-videos",)):
        assert call("report", path, "-o", tmp_path / "r.html", *words).code == 0
        pages.append((tmp_path / "r.html").read_text())
    assert ["data:video/mp4" in page for page in pages] == [False, True]


@changes("list --json", "show --json", "config diff --json", "check --json")
def test_json(finished):
    assert {"dqn", "ppo"} <= {row["name"] for row in call("list", "algos", "--json").json}
    assert "CartPole-v1" in {row["id"] for row in call("list", "envs", "--json").json}
    assert isinstance(call("list", "presets", "--json").json, list)
    assert call("show", "c51", "--json").json["settings"]["algo.head.atoms"] == 51
    same = call("config", "diff", finished, finished, "--json")
    assert (same.code, same.json) == (0, [])
    assert all(
        set(f) == {"level", "text", "fix"} for f in call("check", "CartPole-v1", "--json").json
    )


@changes("config diff --runs-dir")
def test_diff_takes_the_names_of_runs(finished):
    root, name = finished.parent, finished.name
    same = call("config", "diff", name, name, "--runs-dir", root)
    assert same.code == 0 and "no difference" in same.out
    refused = call("config", "diff", name, "nothing-like-it", "--runs-dir", root)
    assert refused.code == 1 and "E303" in refused.err


def test_diff_of_two_runs(finished, tmp_path):
    other = tmp_path / "config.yaml"
    other.write_text((finished / "config.yaml").read_text().replace("seed: 1", "seed: 2"))
    answer = call("config", "diff", finished, other)
    assert answer.code == 1 and "run.seed" in answer.out


@changes("doctor --gpu", "doctor --runs-dir", "doctor --json")
def test_doctor(tmp_path, monkeypatch):
    import torch

    found = {f["name"]: f for f in call("doctor", "--json", "--runs-dir", tmp_path).json}
    assert {"python", "torch", "CartPole-v1", "memory", "runs"} <= set(found)
    assert found["runs"]["text"].startswith(str(tmp_path))
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    plain, strict = call("doctor", "--runs-dir", tmp_path), call("doctor", "--gpu")
    assert (plain.code, strict.code) == (0, 1) and "error    gpu" in strict.out
    assert call("doctor", "--runs-dir", "/proc/none").code == 1


@changes("--version")
def test_version():
    import ludus

    assert call("--version").out.strip() == f"ludus {ludus.__version__}"


def test_no_color_and_debug_go_anywhere(monkeypatch, capsys):
    monkeypatch.setitem(output._OPTIONS, "color", True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    with pytest.raises(SystemExit) as ended:
        main.main(["train", "nothing", "--no-color", "X", "--debug"])
    assert ended.value.code == 2 and output._OPTIONS["color"] is False
    assert "Traceback" in capsys.readouterr().err
    monkeypatch.delenv("NO_COLOR", raising=False)


COVERED.update({"stop --wait", "stop --runs-dir"})  # test_processes.py
COVERED.update({"compare --runs-dir", "compare --json"})  # stats/test_compare.py
# In tests/evals: test_atari_eval.py, test_lone_file.py, test_film.py.
COVERED.update({"eval --protocol", "eval --video", "eval --out", "eval --config"})
for _option in ("out", "json", "episodes", "all-checkpoints", "gif", "minutes", "protocol"):
    COVERED.add(f"record --{_option}")
COVERED.add("play --episodes")
for _option in ("preset", "seconds", "counts", "full", "eager", "out", "json"):  # test_bench.py
    COVERED.add(f"bench speed --{_option}")
for _option in ("envs", "algos", "seeds", "jobs", "sweep", "preset", "untuned", "name", "dry-run",
                "runs-dir", "quiet", "json", "import"):  # fmt: skip  # tests/bench
    COVERED.add(f"bench matrix --{_option}")
COVERED.add("bench matrix -q")


@pytest.mark.accept(127)
def test_no_option_is_without_a_test():
    def options(command, path):
        for parameter in command.params:
            for text in getattr(parameter, "opts", []):
                if text.startswith("-") and "--help" not in parameter.opts:
                    yield f"{path} {text}".strip()
        for name, below in getattr(command, "commands", {}).items():
            yield from options(below, f"{path} {name}".strip())

    found = set(options(typer.main.get_command(main.app), ""))
    assert found - COVERED == set(), "options that no test covers"
    assert COVERED - found == set(), "options that are gone"
