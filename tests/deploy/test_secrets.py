"""No secret stands in the repository: a scan for keys of well-known kinds, and for values of
variables that name a secret."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.deploy.files import ROOT, all_files

KINDS = {
    "private key": r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY",
    "AWS access key": r"\b(?:AKIA|ASIA|AROA|AIDA)[0-9A-Z]{16}\b",
    "AWS secret key": r"(?i)aws.{0,20}secret.{0,20}['\"=: ][0-9a-z/+]{40}\b",
    "GitHub token": r"\b(?:gh[pousr]_[0-9A-Za-z]{36}|github_pat_[0-9A-Za-z_]{60})",
    "GitLab token": r"\bglpat-[0-9A-Za-z_-]{20}",
    "Slack token": r"\bxox[abprs]-[0-9A-Za-z-]{10}",
    "Google API key": r"\bAIza[0-9A-Za-z_-]{35}\b",
    "Hugging Face token": r"\bhf_[0-9A-Za-z]{34}\b",
    "Weights & Biases key": r"(?i)wandb.{0,20}key['\"=: ]+[0-9a-f]{40}\b",
    "JSON web token": r"\beyJ[0-9A-Za-z_-]{10,}\.eyJ[0-9A-Za-z_-]{10,}\.",
    "password in an address": r"[a-z][a-z0-9+.-]*://[^\s/:@'\"<>{}$]+:(?=[^\s@]*[a-z])[^\s/:@'\"<>{}$]{6,}@",
}
# A variable or key that names a secret, and its value.
NAMED = re.compile(
    r"(?i)(?:token|secret|password|passwd|api_?key)['\"]?\s*[:=](?!=)\s*['\"]?(?P<value>[^\s'\",}]+)"
)
# A reference, a path, a default of a shell's variable, a beginning of a list: no value by itself.
REFERENCE = re.compile(r"^(?:[$~/{\[]|token:/|(?:true|false)$|-|aws_)")


def literals(text: str) -> list[str]:
    """Values that stand next to the name of a secret."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    found = [match["value"] for line in lines for match in NAMED.finditer(line)]
    return [value for value in found if not REFERENCE.search(value)]


def secrets(text: str) -> list[str]:
    return [kind for kind, pattern in KINDS.items() if re.search(pattern, text)]


def tracked() -> list[str]:
    done = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if done.returncode == 0:
        return done.stdout.splitlines()
    return [str(path.relative_to(ROOT)) for path in all_files()]  # a source distribution


def test_no_file_of_the_repository_holds_a_key():
    found, looked = [], 0
    for name in tracked():
        path = ROOT / name
        if path == ROOT / "tests" / "deploy" / "test_secrets.py" or not path.is_file():
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        looked += 1
        found += [f"{name}: {kind}" for kind in secrets(text)]
    assert looked > 20 and found == []


def test_no_file_of_deploy_gives_a_secret_its_value():
    found = {path.name: literals(path.read_text(encoding="utf-8")) for path in all_files()}
    assert {name: values for name, values in found.items() if values} == {}


@pytest.mark.parametrize(
    "line",
    [
        "RAY_AUTH_TOKEN=9f86d081884c7d659a2feaa0c55ad015",
        'password: "correct-horse"',
        "export API_KEY='sk-live-12'",
        '{"secret": "s3"}',
    ],
)
def test_a_value_would_be_found(line):
    assert literals(line)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_key_would_be_found(kind):
    # Put together here, so that no scanner takes this file for a leak.
    examples = {
        "private key": "-----BEGIN " + "OPENSSH PRIVATE KEY-----",
        "AWS access key": "AK" + "IA" + "ABCDEFGH12345678",
        "AWS secret key": "aws_secret_access_key = " + "a1B2" * 10,
        "GitHub token": "gh" + "p_" + "a" * 36,
        "GitLab token": "glp" + "at-" + "a" * 20,
        "Slack token": "xo" + "xb-" + "1234567890",
        "Google API key": "AI" + "za" + "a" * 35,
        "Hugging Face token": "hf" + "_" + "a" * 34,
        "Weights & Biases key": "WANDB_API_KEY=" + "0a" * 20,
        "JSON web token": "ey" + "J" + "a" * 12 + ".ey" + "J" + "b" * 12 + ".c",
        "password in an address": "postgres://me:" + "hunter22" + "@db.example.org",
    }
    assert kind in secrets(examples[kind])
