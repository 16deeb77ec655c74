"""An id whose version gymnasium no longer has: said in one line, recorded as what was trained."""

import json

import pytest

import ludus
from ludus.api import resolved
from ludus.settings.resolve import Request, load_config, resolve
from ludus.settings.resume import continued
from tests.cli.conftest import SMALL, call


@pytest.mark.parametrize(
    ("typed", "trained"),
    [("LunarLander-v2", "LunarLander-v3"), ("Taxi-v3", "Taxi-v4"), ("Pendulum-v0", "Pendulum-v1")],
)
def test_the_settings_name_what_will_be_trained(typed, trained):
    found = resolve(Request("ppo", typed, environ={}))
    assert found.config.env.id == trained
    assert found.notes == (f"{typed} is no longer registered: {trained} is trained instead",)
    assert resolve(Request("ppo", trained, environ={})).notes == ()


def test_a_file_and_a_setting_are_treated_alike(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("algo: ppo\nenv: {id: LunarLander-v2}\n")
    asks = (Request(files=[file], environ={}), Request("ppo", overrides=["env.id=LunarLander-v2"]))
    for ask in asks:
        found = resolve(ask)
        assert found.config.env.id == "LunarLander-v3" and found.notes


def test_python_is_warned():
    with pytest.warns(UserWarning, match="LunarLander-v3 is trained instead"):
        assert ludus.config("ppo", "LunarLander-v2").env.id == "LunarLander-v3"


def test_everything_of_the_run_has_the_name_of_what_was_trained(tmp_path):
    answer = call("train", "dqn", "Acrobot-v0", *SMALL, "--runs-dir", tmp_path)
    assert answer.code == 0, answer.err
    (said,) = [x for x in (answer.out + answer.err).splitlines() if "is trained instead" in x]
    assert "warning: Acrobot-v0 is no longer registered: Acrobot-v1 is trained instead" in said
    (run,) = tmp_path.iterdir()
    assert run.name.startswith("Acrobot-v1-")
    assert load_config(run / "config.yaml").env.id == "Acrobot-v1"
    assert json.loads((run / "status.json").read_text())["env"] == "Acrobot-v1"
    assert "is trained instead" in (run / "log.txt").read_text()
    assert "Acrobot-v1" in (run / "report.html").read_text()


def test_dry_run_says_it():
    answer = call("train", "ppo", "LunarLander-v2", "--dry-run")
    assert "warning      LunarLander-v2 is no longer registered" in answer.out


def test_a_run_recorded_under_the_old_name_goes_on():
    new = resolve(Request("ppo", "LunarLander-v2", environ={}))
    env = new.config.env.model_copy(update={"id": "LunarLander-v2"})
    stored = new.config.model_copy(update={"env": env})
    for typed in (new, resolved("ppo", "LunarLander-v3")):
        assert continued(stored, typed.config, typed.sources).env.id == "LunarLander-v2"


def test_check_and_bench_say_it(tmp_path):
    assert "Acrobot-v1 is trained instead" in call("check", "Acrobot-v0").out
    words = ("--algos", "dqn", "--envs", "Acrobot-v0", "--dry-run", "--runs-dir", tmp_path)
    assert "Acrobot-v1 is trained instead" in call("bench", *words).err
