"""docs/coming-from.md is true: whatever its right-hand column promises is executed or looked for.

Commands run at a small size, in the page's order and in one folder for each project; a table's
settings are resolved one by one, then trained with all together. "not yet" is checked too.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import typer.main
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ludus import registry
from ludus.cli import main
from ludus.settings.resolve import Request, resolve
from tests.contract.tiny import known, overrides, tiny
from tests.contract.tiny import run as small_run_of

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
TABLE = re.compile(
    r"^## (?P<project>[^\n]+)\n.*?^<!-- settings of: (?P<algo>\S+) (?P<env>\S+) -->\n"
    r"\| there \| here \|\n\|---\|---\|\n(?P<rows>(?:\|[^\n]*\n)+)",
    re.MULTILINE | re.DOTALL,
)
TABLES = {found["project"]: found for found in TABLE.finditer(PAGE)}
METRICS = set(re.findall(r"`([a-z]+/[a-z_]+)`", (ROOT / "docs/metrics.md").read_text("utf-8")))
FRAMES = 120  # of one game
QUIET = ("log.every=40", "eval.best_window=1", "-q")
pytestmark = pytest.mark.usefixtures("_unseen")


@pytest.fixture
def _unseen(tmp_path, monkeypatch):
    """A folder of its own, and windows that nobody sees."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")


def rows(project: str) -> list[tuple[str, str]]:
    lines = TABLES[project]["rows"].splitlines()
    cells = [line.strip("|").split(" | ") for line in lines]
    assert all(len(row) == 2 for row in cells), "two columns"
    return [(there.strip(), here.strip()) for there, here in cells]


def spans(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def is_setting(span: str) -> bool:
    return re.match(r"[a-z][\w.]*=", span) is not None


def verbs() -> dict[str, typer.main.TyperCommand]:
    return typer.main.get_command(main.app).commands


def smaller(words: list[str]) -> list[str]:
    """The same command, done in a second: what is added comes last, so it wins."""
    verb = words[0]
    if verb == "train":
        less = ["steps=40"] if "--watch" in words else []  # windows keep to the game's speed
        settings = tuple(filter(is_setting, words[3:]))
        return [*words, *small_run(words[1], words[2], settings), *less]
    if verb == "resume":
        return [*(re.sub(r"^steps=\+.*", "steps=+40", word) for word in words), "-q"]
    if verb == "bench":
        tiny = small_run("impala", "CartPole-v1", ())
        return [*words, "--envs", "CartPole-v1", "--seeds", "1", "--jobs", "1", *tiny]
    added = {
        "eval": ["--episodes", "1", "--no-video"],
        "play": ["--episodes", "1", "--speed", "1000"],
        "record": ["--minutes", "0.02"],
    }
    stuck = ["env.max_stuck=40"] if "--protocol" in words else []  # an untrained agent is
    return [*words, *added.get(verb, []), *stuck]


def small_run(algo: str, env: str, settings: tuple[str, ...]) -> list[str]:
    cfg = resolve(Request(algo, env, settings, environ={})).config
    auto = getattr(getattr(cfg.algo, "torso", None), "kind", "") == "auto"
    small = [word for word in overrides(algo) if auto or not word.startswith("torso.mlp")]
    added = [*small, *known(algo, ("chunk=20",)), "steps=80", "env.num=1", *QUIET]
    if getattr(getattr(cfg.algo, "head", None), "hidden", 0):
        added.append("head.hidden=16")
    if any(s.startswith("actors=") for s in settings):
        added.append("actors=2")
    elif cfg.run.actors > 1:  # by a preset; processes take seconds to start
        added += ["fleet=inline", "actors=1"]
    if cfg.actor.rows > 50:  # the run would wait for whole chunks
        added.append("actor.rows=20")
    if cfg.eval.episodes:
        added.append("eval.episodes=1")
    if cfg.env.atari is not None:
        added += ["env.atari.size=36", f"env.atari.max_frames={FRAMES}"]
    return added


def execute(command: str) -> None:
    words = smaller(shlex.split(command)[1:])
    if words[0] == "train" and "--run" not in words:
        words.append("log.report=false")  # one report a table is enough
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main.run(words)
    assert code == 0, f"$ ludus {shlex.join(words)}\n{out.getvalue()}{err.getvalue()}"
    assert out.getvalue().strip() or err.getvalue().strip(), f"{command} says something"


@dataclass
class Promises:
    """The right-hand column of a table, sorted by how it can be checked."""

    commands: list[str] = field(default_factory=list)
    settings: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, project: str) -> Promises:
        made = cls()
        for span in (span for _, here in rows(project) for span in spans(here)):
            if span.startswith("ludus ") and span.count(" ") > 1:
                made.commands.append(span)
            elif is_setting(span):
                made.settings.append(span)
            elif span.startswith("RUN"):
                made.files.append(span.removeprefix("RUN").strip("/"))
            else:
                made.names.append(span)
        return made


def test_the_page_has_a_table_for_each_project():
    heads = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
    assert list(TABLES) == heads and len(heads) == 5
    for project in heads:
        promised = Promises.of(project)
        assert len(promised.commands) >= 2 and len(promised.settings) >= 15
        assert len(promised.files) >= 2


# The slow ones train with the commands of their project's README.
QUICK = "Ape-X on several nodes"


@pytest.mark.parametrize(
    "project", [pytest.param(p, marks=() if p == QUICK else pytest.mark.slow) for p in TABLES]
)
def test_commands_run_and_leave_the_files_that_are_named(project, tmp_path):
    promised = Promises.of(project)
    for command in promised.commands:
        execute(command)
    for file in promised.files:
        assert list((tmp_path / "runs").glob(f"*/{file}")), f"a run has {file}"


@pytest.mark.parametrize("project", TABLES)
def test_settings_are_taken_one_by_one_and_together(project):
    table, settings = TABLES[project], Promises.of(project).settings
    algo, env = table["algo"], table["env"]
    for setting in settings:
        done = resolve(Request(algo, env, (setting,), environ={}))
        assert "command line" in done.sources.values(), f"{setting} has an effect"
        assert done.sources.keys() == done.config.flat().keys(), f"{setting}: --dry-run shows all"
    here = [s for s in settings if not s.endswith("=cuda")]  # for machines without a GPU
    execute(shlex.join(["ludus", "train", algo, env, *here, "--dry-run"]))
    execute(shlex.join(["ludus", "train", algo, env, *here]))


@pytest.mark.parametrize("project", TABLES)
def test_everything_else_that_is_named_exists(project):
    flags = {name for verb in verbs().values() for param in verb.params for name in param.opts}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    algos = {entry.name for entry in registry.BUILT_IN}
    for name in Promises.of(project).names:
        if name.startswith("ludus "):
            assert name.split()[1] in verbs(), name
        elif name.startswith("--"):
            assert name.split()[0] in flags, name
        elif "/" in name:
            assert name in METRICS, name
        elif re.match(r"[A-Z_]+=", name):
            assert name == "CUDA_VISIBLE_DEVICES=1", "a variable that torch obeys, not one of ours"
        elif "." in name:
            keys = {key for a in algos for key in registry.config_class(a).model_fields}
            assert name.removeprefix("algo.") in keys, name
        else:
            assert name in algos or name in extras["optional-dependencies"], name


def here_of(project: str, flag: str) -> str:
    return next(here for there, here in rows(project) if flag in there)


def test_counts_of_rainbow_iqn_are_steps_and_the_presets_are_named():
    """learn-start 80,000 and target-update 32,000 count its agents' steps, not frames."""
    learn, target = (here_of("Rainbow-IQN Ape-X", f) for f in ("--learn-start", "--target-update"))
    typed = [*filter(is_setting, spans(learn)), *filter(is_setting, spans(target))]
    request = Request("apex-rainbow-iqn", "space_invaders", tuple(typed), environ={})
    algo = resolve(request).config.algo
    steps_an_update = algo.batch / algo.replay_ratio
    assert algo.warmup == 80_000 and algo.target_period * steps_an_update == 32_000
    preset = resolve(Request("apex-rainbow-iqn", "space_invaders", environ={})).config.algo
    assert f"{preset.warmup:,} steps" in learn and f"{preset.target_period:,} updates" in target
    assert preset.warmup * 4 == 80_000 and preset.target_period * steps_an_update * 4 == 32_000


def test_the_flag_that_chooses_a_gpu_is_given_what_chooses_one():
    here = here_of("Rainbow-IQN Ape-X", "--gpu-number")
    assert spans(here)[0] == "CUDA_VISIBLE_DEVICES=1"
    program = "import torch; print(torch.cuda.device_count())"
    seen = {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **seen}, capture_output=True, text=True
    )
    assert done.stdout.strip() == "0", done.stderr


def test_pictures_are_where_the_zoo_has_them(tmp_path):
    (setting,) = filter(is_setting, spans(here_of("Deep RL Zoo", "--debug_screenshots_interval")))
    assert setting == "log.screenshots=100"
    words = ("log.screenshots=2", "steps=200", "env.max_episode_steps=10", "log.tensorboard=true")
    run = small_run_of(tiny("dqn", "CartPole-v1", *words), tmp_path)
    board = EventAccumulator(str(run.path / "tb"), size_guidance={"images": 0}).Reload()
    taken = sorted((run.path / "screenshots").iterdir())
    assert len(board.Images("performance/terminal_state")) == len(taken) > 2


def test_not_yet_is_said_of_the_algorithms_that_are_not_there_and_of_no_other():
    there = {entry.name for entry in registry.BUILT_IN}
    said = {}
    for left, right in rows("Deep RL Zoo"):
        for name in re.findall(r"deep_rl_zoo\.(\w+)\.run", left):
            known = name.replace("_", "-").replace("c51-dqn", "c51")
            said.setdefault(known, set()).add(right != "not yet")
    assert len(said) == 20, "all of its algorithms"
    assert said == {name: {name in there} for name in said}
    for project in TABLES:
        for _, here in rows(project):
            assert "not yet" not in here or here == "not yet", "plainly, and nothing beside it"
            assert here == "not yet" or len(here) > 3
