"""Secrets: which settings are, what is written in their place, what is asked for again."""

import time

import pytest

from ludus import secret_masking
from ludus.errors import LudusError
from ludus.registry import entries
from ludus.secret_masking import (
    hide,
    is_masked,
    is_secret,
    learn,
    masked,
    masked_command,
    refuse_masked,
)
from ludus.settings.resolve import Request, resolve


@pytest.mark.parametrize(
    "name",
    ["api_key", "apiKey", "API-KEY", "env.args.token", "hf_token", "password", "passwd", "db_pwd",
     "client_secret", "credentials", "auth", "privateKey", "aws_access_key", "authorization",
     "userPassword", "--hub-token", "session_cookie", "signing_key", "pw", "db_pass", "jwt",
     "tokens", "hub_tokens", "apiKeys", "passwords", "secrets", "cookies", "ssh_key"],
)  # fmt: skip
def test_names_of_secrets(name):
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    ["lr", "keep", "key", "keys", "author", "secretary", "max_tokens", "tokenizer", "tokenless",
     "passes", "compass", "monkey", "id", "keyboard", "authentic", "passenger", "spawn", "power",
     "num_tokens", "special_tokens", "pad_token", "eosToken", "stop_tokens"],
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
    "plural names": ({"tokens": ["abc"], "hub_tokens": {"a": "b"}},
                     {"tokens": "***", "hub_tokens": "***"}),
    "an integer": ({"session_token": 123456, "pw": 12345}, {"session_token": "***", "pw": "***"}),
    "counts": ({"tokens": 512, "max_tokens": 4096, "prompt_tokens": [1, 2], "token": 7},
               {"tokens": 512, "max_tokens": 4096, "prompt_tokens": [1, 2], "token": 7}),
    "a slash in a password": ({"db": "postgres://u:NEE/D#L?E@h/db"},
                              {"db": "postgres://u:***@h/db"}),
    "two URLs": ({"dbs": "redis://a:b@h1,redis://c:d@h2"},
                 {"dbs": "redis://a:***@h1,redis://c:***@h2"}),
    "a token alone in wss": ({"url": "wss://NEEDLE@h"}, {"url": "wss://***@h"}),
    "a long one in any scheme": ({"url": "nats://a1b2c3d4e5f6a7b8@h"}, {"url": "nats://***@h"}),
    "no scheme": ({"url": "//u:PW@h/x"}, {"url": "//u:***@h/x"}),
    "no slashes": ({"dsn": "me:PW@tcp(h)/db"}, {"dsn": "me:***@tcp(h)/db"}),
    "an image": ({"image": "box:1.2@sha256:abcd"}, {"image": "box:1.2@sha256:abcd"}),
    "a key": ({"hosts": {"redis://me:PW@h": 3}}, {"hosts": {"redis://me:***@h": 3}}),
    "a DSN": ({"dsn": "host=h password=PW port=5"}, {"dsn": "host=h password=*** port=5"}),
    "a quoted DSN": ({"dsn": "password = 'P W' host=h"}, {"dsn": "password = *** host=h"}),
    "a fragment": ({"url": "https://h/#access_token=NEEDLE&a=1"},
                   {"url": "https://h/#access_token=***&a=1"}),
    "JSON": ({"body": '{"api_key": "abc", "n": 1}'}, {"body": '{"api_key": "***", "n": 1}'}),
    "deep JSON": ({"body": '[{"auth": {"a": {"b": "c"}, "d": "e"}}]'},
                  {"body": '[{"auth": "***"}]'}),
    "cut-off JSON": ({"body": '{"api_key": "abc'}, {"body": '{"api_key": ***'}),
    "another header": ({"headers": ["Authorization: Token abc", "X-Api-Key: abc"]},
                       {"headers": ["Authorization: Token ***", "X-Api-Key: ***"]}),
    "a header of parts": ({"h": 'Authorization: Digest user="u", response="r"'},
                          {"h": "Authorization: Digest ***"}),
    "a module": ({"id": "auth:Env", "imports": ["token"], "w": "tokens.env:Env"},
                 {"id": "auth:Env", "imports": ["token"], "w": "tokens.env:Env"}),
    "stars": ({"name": "a***b"}, {"name": "a***b"}),
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
        'env.args={api_key: "a b", n: 1}', "env.args={auth: {a: {b: c}, d: e}, n: 1}",
        'env.args={n: 1, token: "abc', "{tokens: [abc, d], n: 1}",
    ]  # fmt: skip
    assert masked_command(typed) == [
        "ludus", "train", "env.args.api_key=***", "--hub-token", "***", "--token=***", "seed=3",
        "env.args={password: ***, size: 3}", "env.args.url=http://me:***@host/", "env.id=Secret-v0",
        "env.args={api_key: ***, n: 1}", "env.args={auth: ***, n: 1}",
        "env.args={n: 1, token: ***", "{tokens: ***, n: 1}",
    ]  # fmt: skip


def test_messages_lose_the_secrets_of_this_process():
    learn({"env": {"args": {"api_key": "s3cr3t-value", "pin_token": "abcd", "n": "plain"}}})
    said = hide({"error": ["no s3cr3t-value, abcd or abcde at ftp://u:p@h", 3], "n": "plain"})
    assert said == {"error": ["no ***, *** or abcde at ftp://u:***@h", 3], "n": "plain"}


TEXTS = [
    "host=h password=NEEDLE1 x=1", '{"api_key": "NEEDLE1"}', "Authorization: Token NEEDLE1",
    "postgres://u:NEEDLE1@h", "wss://NEEDLE1@h", "https://h/#access_token=NEEDLE1",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_secrets_inside_texts_are_hidden_where_they_are_quoted(text):
    learn({"env": {"args": {"x": [text]}}})
    assert hide("it said NEEDLE1.") == "it said ***."
    secret_masking._known.discard("NEEDLE1")


def test_messages_are_not_taken_for_settings():
    for said in ("env.args.api_key: a secret that no file holds", "token: expected a word"):
        assert hide(said) == said


def test_a_missing_key_of_a_table_is_asked_for():
    with pytest.raises(LudusError) as refused:
        refuse_masked({"env.args.redis://me:***@h": 3})
    assert refused.value.code == "E110" and "env.args={...}" in refused.value.fix


def test_secret_masking_takes_no_longer_than_the_text():
    began = time.monotonic()
    for part in ("password=", '{"a": ', "//a:b", "a@", "token: [", "Authorization: ", '"', "x:y@"):
        masked({"x": part * 20_000})
    assert time.monotonic() - began < 5


def test_a_secret_that_is_missing_is_named():
    refuse_masked({"env.args.size": 3, "env.args.url": "http://host"})
    with pytest.raises(LudusError) as refused:
        refuse_masked({"env.args.size": 3, "env.args.api_key": "***"})
    assert refused.value.code == "E110" and "env.args.api_key" in refused.value.what
    assert "LUDUS_ENV__ARGS__API_KEY" in refused.value.fix
