"""Secrets: which settings are, what is written in their place, what is asked for again."""

import pytest

from ludus.errors import LudusError
from ludus.masking import hide, is_masked, is_secret, learn, masked, masked_command, refuse_masked
from ludus.registry import entries
from ludus.settings.resolve import Request, resolve


@pytest.mark.parametrize(
    "name",
    ["api_key", "apiKey", "API-KEY", "env.args.token", "hf_token", "password", "passwd", "db_pwd",
     "client_secret", "credentials", "auth", "privateKey", "aws_access_key", "authorization",
     "userPassword", "--hub-token", "session_cookie", "signing_key", "pw", "db_pass", "jwt"],
)  # fmt: skip
def test_names_of_secrets(name):
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    ["lr", "keep", "key", "keys", "author", "secretary", "tokens", "tokenizer", "tokenless",
     "passes", "compass", "monkey", "id", "keyboard", "authentic", "passenger", "spawn", "power"],
)  # fmt: skip
def test_ordinary_names(name):
    assert not is_secret(name)


def test_no_setting_of_ludus_is_taken_for_a_secret():
    for algo in [entry.name for entry in entries()]:
        for env in ("CartPole-v1", "Pendulum-v1"):
            try:
                config = resolve(Request(algo, env, environ={})).config
            except LudusError:
                continue
            assert masked(config.tree()) == config.tree()


CASES = {
    "a name": ({"api_key": "abc", "n": 3}, {"api_key": "***", "n": 3}),
    "a number": ({"password": 12345678, "token_dim": 64}, {"password": "***", "token_dim": 64}),
    "nothing given": (dict(token=None, auth=False, pwd=""), dict(token=None, auth=False, pwd="")),
    "sizes": ({"pad_token": 3, "max_token": 9, "password_length": 4},
              {"pad_token": 3, "max_token": 9, "password_length": 4}),
    "a header": ({"headers": ["Authorization: Bearer abc"]},
                 {"headers": ["Authorization: Bearer ***"]}),
    "a table": ({"credentials": {"user": "me", "id": 3}}, {"credentials": "***"}),
    "a list": ({"wraps": [{"args": {"token": "x"}}]}, {"wraps": [{"args": {"token": "***"}}]}),
    "a URL": ({"db": "redis://me:p@ss@host:1/x"}, {"db": "redis://me:***@host:1/x"}),
    "without a user": ({"db": "redis://:hunter2@host"}, {"db": "redis://:***@host"}),
    "a token alone": ({"git": "https://ghp_123@host/x"}, {"git": "https://***@host/x"}),
    "only a user": ({"git": "ssh://git@host/x"}, {"git": "ssh://git@host/x"}),
    "a query": ({"url": "http://h/x?a=1&api_key=q"}, {"url": "http://h/x?a=1&api_key=***"}),
    "a port": ({"url": "http://host:8080/a@b"}, {"url": "http://host:8080/a@b"}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_trees_are_masked(case):
    tree, want = CASES[case]
    assert masked(tree) == want
    assert is_masked(masked(tree)) == (tree != want)


def test_commands_are_masked():
    typed = [
        "ludus", "train", "env.args.api_key=abc", "--hub-token", "xyz", "--token=xyz", "seed=3",
        "env.args={password: pp, size: 3}", "env.args.url=http://me:pw@host/", "env.id=Secret-v0",
    ]  # fmt: skip
    assert masked_command(typed) == [
        "ludus", "train", "env.args.api_key=***", "--hub-token", "***", "--token=***", "seed=3",
        "env.args={password: ***, size: 3}", "env.args.url=http://me:***@host/", "env.id=Secret-v0",
    ]  # fmt: skip


def test_messages_lose_the_secrets_of_this_process():
    learn({"env": {"args": {"api_key": "s3cr3t-value", "pin_token": "abcd", "n": "plain"}}})
    said = hide({"error": ["no s3cr3t-value, abcd or abcde at ftp://u:p@h", 3], "n": "plain"})
    assert said == {"error": ["no ***, *** or abcde at ftp://u:***@h", 3], "n": "plain"}


def test_a_secret_that_is_missing_is_named():
    refuse_masked({"env.args.size": 3, "env.args.url": "http://host"})
    with pytest.raises(LudusError) as refused:
        refuse_masked({"env.args.size": 3, "env.args.api_key": "***"})
    assert refused.value.code == "E110" and "env.args.api_key" in refused.value.what
    assert "LUDUS_ENV__ARGS__API_KEY" in refused.value.fix
