"""The rules that every Dockerfile of deploy/ keeps. Images are linted here, never built."""

from __future__ import annotations

import re

import pytest

from tests.deploy.files import DEPLOY, text

NAMES = ["Dockerfile", "Dockerfile.cuda"]
SECRET = re.compile(r"token|secret|password|credential|_key\b", re.I)


def instructions(name: str) -> list[tuple[str, str]]:
    joined = re.sub(r"\\\n", " ", text(name))
    lines = [line.strip() for line in joined.splitlines()]
    return [(w[0], w[1]) for line in lines if line and line[0] != "#" for w in [line.split(" ", 1)]]


def faults(found: list[tuple[str, str]]) -> list[str]:
    """What is wrong with the instructions of a Dockerfile."""
    wrong = []
    stages = [i for i, (word, _) in enumerate(found) if word == "FROM"]
    wrong += [
        f"not pinned: {rest}"
        for word, rest in found
        if word == "FROM" and not re.match(r"\S+:\d+\.\d+\.\d+[-\w.]*( AS \w+)?$", rest)
    ]
    users = [rest for word, rest in found[stages[-1] :] if word == "USER"]
    if not users or users[-1].split(":")[0] in ("0", "root"):
        wrong.append("root")
    wrong += [f"ADD {rest}" for word, rest in found if word == "ADD"]
    wrong += [
        f"{word} {rest}" for word, rest in found if word in ("ENV", "ARG") and SECRET.search(rest)
    ]
    wrong += [rest for word, rest in found if word == "RUN" and re.search(r"curl|wget", rest)]
    words = {word for word, _ in found}
    wrong += [f"no {word}" for word in ("HEALTHCHECK", "ENTRYPOINT") if word not in words]
    return wrong


@pytest.mark.parametrize("name", NAMES)
def test_it_keeps_the_rules(name):
    assert faults(instructions(name)) == []


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("python:3.12.12-slim-bookworm\n", "python:latest\n", "not pinned"),
        ("USER 10001:10001", "USER root", "root"),
        ("WORKDIR", "ADD https://example.org/x /x\nWORKDIR", "ADD"),
        ("ARG ATARI=0", "ARG RAY_AUTH_TOKEN=x", "ARG"),
        ("HEALTHCHECK --interval=30s", "LABEL x=y", "no HEALTHCHECK"),
    ],
)
def test_a_broken_copy_does_not(monkeypatch, old, new, fault):
    broken = text("Dockerfile").replace(old, new)
    assert broken != text("Dockerfile")
    monkeypatch.setattr("tests.deploy.test_dockerfiles.text", lambda name: broken)
    assert any(said.startswith(fault) for said in faults(instructions("Dockerfile")))


def test_both_differ_in_the_build_of_torch_only():
    one, other = (dict.fromkeys(instructions(name)) for name in NAMES)
    different = [x for x in one if x not in other]
    assert [word for word, _ in different] == ["RUN", "ENV"]
    assert all("DEPLOY_TORCH" in rest or "OMP_NUM_THREADS" in rest for _, rest in different)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_copied_into_an_image_exists_and_is_all_that_install_needs(root, name):
    kept = [line[1:] for line in text(f"{name}.dockerignore").splitlines() if line[:1] == "!"]
    assert all((root / path).exists() for path in kept)
    install = (DEPLOY / "install.sh").read_text(encoding="utf-8")
    for path in re.findall(r"\$source/([\w./-]+)", install):
        assert path in kept
