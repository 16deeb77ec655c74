"""A secret setting reaches the environment, and no file or line that a run leaves."""

import json

import gymnasium as gym
import numpy as np
import pytest
import yaml

import ludus
from ludus import secret_masking
from ludus.envs.wrapper_config import WrapperConfig
from ludus.envs.wrappers import wrap
from ludus.errors import LudusError
from ludus.settings.resolve import load_config
from ludus.track.checkpoint.reader import load_newest_good
from tests.cli.conftest import SMALL, call

KEY, PASSWORD = "k3y-7f1d90aa", "pa55-c0ffee42"
URL = f"redis://me:{PASSWORD}@localhost:1/x"
GIVEN = (f"env.args.api_key={KEY}", f"env.args.store={URL}")
SEEN, MORE = [], []
NEEDLE = "NEE7DLE99"
FORMS = {
    "tokens": [NEEDLE],
    "hub_tokens": {"a": NEEDLE},
    "session_token": 77889900,
    "slash": f"postgres://u:NEE/{NEEDLE}@h/db",
    "lone": f"wss://{NEEDLE}@h",
    "schemeless": f"//u:{NEEDLE}@h",
    "keys": {f"redis://u:{NEEDLE}@h": 1},
    "dsn": f"host=h password={NEEDLE}",
    "fragment": f"https://h/#access_token={NEEDLE}",
    "body": f'{{"api_key": "{NEEDLE}"}}',
    "headers": [f"Authorization: Token {NEEDLE}"],
}


class Vault(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, api_key="", store="", fail_at=0, more=None):
        SEEN.append((api_key, store))
        MORE.append(more)
        self.says, self.fail_at, self.steps = f"{api_key} refused by {store}", fail_at, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 5
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.left, self.steps = self.left - 1, self.steps + 1
        if self.steps == self.fail_at:
            raise RuntimeError(self.says)
        return np.zeros(2, np.float32), 1.0, self.left == 0, False, {}


class Wrap(gym.Wrapper):
    def __init__(self, env, token=""):
        super().__init__(env)
        assert token == KEY


@pytest.fixture(autouse=True)
def vault(monkeypatch):
    SEEN.clear()
    MORE.clear()
    secret_masking._known.clear()
    monkeypatch.setitem(
        gym.registry, "Vault-v0", gym.envs.registration.EnvSpec("Vault-v0", entry_point=Vault)
    )


@pytest.fixture
def start(tmp_path, monkeypatch):
    """`ludus train`, as it is typed, with two secrets."""

    def train(*more):
        words = ["train", "dqn", "Vault-v0", *SMALL, *GIVEN, "tensorboard=on", "report=off", *more]
        words += ["--run", "a", "--runs-dir", str(tmp_path)]
        monkeypatch.setattr("sys.argv", ["ludus", *words])
        return call(*words)

    return train


def leaks(folder):
    secrets = [text.encode() for text in (KEY, PASSWORD, NEEDLE, "77889900")]
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert len(files) > 12
    return [str(p.relative_to(folder)) for p in files if any(s in p.read_bytes() for s in secrets)]


def test_nothing_that_a_run_leaves_holds_its_secrets(start, tmp_path):
    answer = start("report=on")
    assert answer.code == 0, answer.err
    assert (tmp_path / "a" / "report.html").is_file()
    assert SEEN and set(SEEN) == {(KEY, URL)}
    assert leaks(tmp_path) == []
    assert not any(s in text for s in (KEY, PASSWORD) for text in (answer.out, answer.err))
    assert "env.args.api_key=***" in (tmp_path / "a" / "events.jsonl").read_text()
    stored = load_config(tmp_path / "a" / "config.yaml").env.args
    assert stored == {"api_key": "***", "store": "redis://me:***@localhost:1/x"}
    assert load_newest_good(tmp_path / "a").state["config"]["env"]["args"] == stored


def test_secrets_of_any_form_are_left_out(start, tmp_path, tmp_path_factory):
    file = tmp_path_factory.mktemp("own") / "my.yaml"
    file.write_text(yaml.safe_dump({"env": {"args": {"more": FORMS}}}))
    answer = start("report=on", "-c", str(file))
    assert answer.code == 0, answer.err
    assert MORE[-1] == FORMS and leaks(tmp_path) == []
    more = ("eval", "a", "--episodes", "1", "--no-video", "--runs-dir", tmp_path, *GIVEN)
    refused = call(*more)
    assert "E110" in refused.err and "env.args.more" in refused.err
    MORE.clear()
    answer = call(*more, f"env.args={json.dumps({'more': FORMS})}")
    assert answer.code == 0 and MORE[0] == FORMS, answer.err
    assert leaks(tmp_path) == []


def test_an_error_that_quotes_a_secret_is_masked(start, tmp_path):
    answer = start("env.args.fail_at=150")
    assert answer.code != 0 and "*** refused by redis://me:***@" in answer.err
    assert KEY not in answer.err and PASSWORD not in answer.err
    assert leaks(tmp_path) == []


def test_what_is_shown_before_a_run_is_masked(start):
    for words in ((), ("--json",)):
        answer = start("--dry-run", *words)
        assert answer.code == 0 and "***" in answer.out
        assert KEY not in answer.out and PASSWORD not in answer.out


def test_a_constructor_that_fails_does_not_tell(start):
    answer = start("env.args.size=3")  # it takes none
    assert "E201" in answer.err and KEY not in answer.err and PASSWORD not in answer.err


def test_a_run_goes_on_with_its_secrets_alone(start, tmp_path, monkeypatch):
    assert start().code == 0
    more = ("resume", "a", "steps=+20", "--runs-dir", tmp_path)
    refused = call(*more)
    assert refused.code == 2 and "E110" in refused.err and "env.args.api_key" in refused.err
    assert call(*more, GIVEN[0]).code == 2, "the URL is still missing"
    SEEN.clear()
    answer = call(*more, *GIVEN)
    assert answer.code == 0 and set(SEEN) == {(KEY, URL)}, answer.err
    # By variables, and by the command it was started with.
    monkeypatch.setenv("LUDUS_ENV__ARGS__API_KEY", KEY)
    monkeypatch.setenv("LUDUS_ENV__ARGS__STORE", URL)
    answer = call(*more)
    assert answer.code == 0 and set(SEEN) == {(KEY, URL)}, answer.err
    assert start("steps=300").code == 0
    assert leaks(tmp_path) == []


def test_other_settings_may_still_not_change(start, tmp_path):
    assert start().code == 0
    refused = call("resume", "a", *GIVEN, "gamma=0.5", "--runs-dir", tmp_path)
    assert "E307" in refused.err and "env.args" not in refused.err
    other = call("resume", "a", GIVEN[0], "env.args.store=redis://me:x@elsewhere/")
    assert other.code != 0 and PASSWORD not in other.err


def test_an_agent_takes_secrets_that_are_typed(start, tmp_path):
    assert start().code == 0
    SEEN.clear()
    words = ("eval", "a", "--episodes", "2", "--no-video", "--runs-dir", tmp_path)
    answer = call(*words, *GIVEN, "--json")
    assert answer.code == 0 and set(SEEN) == {(KEY, URL)}, answer.err
    assert not answer.json["changed"], "the same game"
    assert leaks(tmp_path) == []


@pytest.mark.parametrize("verb", ["eval", "record", "play"])
def test_an_agent_takes_a_whole_table_of_them(start, tmp_path, monkeypatch, verb):
    """What E110 advises, in every way it can be typed."""
    monkeypatch.setattr("ludus.envs.render.viewer.check_display", lambda: None)
    wrap = f"env.wrappers=[{{name: '{__name__}:Wrap', options: {{token: {KEY}}}}}]"
    assert start(wrap).code == 0
    code = ("--import", __name__, "--episodes", "1", "--runs-dir", tmp_path)
    given = f'env.args={{api_key: "{KEY}", store: "{URL}"}}'
    refused = call(verb, "a", given, *code)
    assert "E110" in refused.err and "type  env.wrappers=... " in refused.err
    refused = call(verb, "a", wrap, *code)
    assert "E110" in refused.err and "env.args.api_key, env.args.store" in refused.err
    SEEN.clear()
    answer = call(verb, "a", given, wrap, *code)
    assert "E110" not in answer.err and set(SEEN) == {(KEY, URL)}, answer.err
    assert leaks(tmp_path) == []


def test_so_does_one_in_python(start, tmp_path):
    assert start().code == 0
    result = ludus.evaluate("a", episodes=1, runs_dir=tmp_path, settings=GIVEN)
    assert result.scores and set(SEEN) == {(KEY, URL)} and leaks(tmp_path) == []


def test_a_refused_command_does_not_repeat_them(start, tmp_path):
    for words in (
        ("check", "Vault-v0", f"env.args.api_key={KEY}"),
        ("check", "Vault-v0", f"env.args={{api_key: '{KEY}'}}"),
        ("eval", "nothing", "--hub-token", KEY),
        ("list", f"api_key={KEY}"),
        ("train", "dqn", "Vault-v0", f"env.wrappers=[{{nam: Repeat, options: {{token: {KEY}}}}}]"),
        ("train", "dqn", "Vault-v0", f"env.wrappers=[{{name: Repeat, options: {{token: {KEY}}}}}]"),
        ("train", "dqn", "Vault-v0", f'env.args.api_key={{x: "{KEY}'),
        ("train", f"password={KEY}", f"env={{password: {KEY}}}", "dqn"),
    ):
        secret_masking._known.clear()
        answer = call(*words)
        assert answer.code and KEY not in answer.out + answer.err, answer.err
    secret_masking._known.clear()
    assert start("env.args.more=a/b").code == 0
    refused = call("eval", "a", f'env.args={{api_key: "{KEY}"}}', "--runs-dir", tmp_path)
    assert "E111" in refused.err and KEY not in refused.err
    assert "env.args={api_key: ***}" in refused.err


def test_an_agent_asks_for_the_secrets_of_its_environment(start, tmp_path, monkeypatch):
    assert start().code == 0
    words = ("eval", "a", "--episodes", "2", "--runs-dir", tmp_path)
    refused = call(*words)
    assert "E110" in refused.err and "env.args.api_key" in refused.err
    assert "export LUDUS_ENV__ARGS__API_KEY=" in refused.err
    monkeypatch.setenv("LUDUS_ENV__ARGS__API_KEY", KEY)
    monkeypatch.setenv("LUDUS_ENV__ARGS__STORE", URL)
    answer = call(*words)
    assert answer.code == 0 and set(SEEN) == {(KEY, URL)}, answer.err
    assert ludus.load("a", runs_dir=tmp_path).act(np.zeros(2, np.float32)) in (0, 1)
    assert leaks(tmp_path) == []


def test_the_options_of_a_wrapper_are_masked_in_errors():
    with pytest.raises(LudusError) as caught:
        wrap(Vault(), WrapperConfig(name="FlattenObservation", options={"api_key": KEY}))
    assert "api_key" in caught.value.where and KEY not in caught.value.render()
