"""The part of `make check` that looks for known weaknesses: bandit in our code, pip-audit in the
locked requirements. A finding fails. pip-audit needs its data from a network: without, it says so.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_NO_NETWORK = re.compile(r"connection|resolve|network|timed? ?out|proxy|SSL|service", re.I)
LOCKS = ("requirements.lock", "requirements-atari.lock", "deploy/requirements-ray.lock")


def bandit() -> bool:
    """Whether bandit, set up in pyproject.toml, finds nothing in the package."""
    command = [sys.executable, "-m", "bandit", "--quiet", "--recursive", "ludus"]
    return subprocess.run([*command, "-c", "pyproject.toml"], cwd=ROOT).returncode == 0


def pip_audit() -> tuple[str, str]:
    """What pip-audit prints: its answer as JSON, nothing where it has none, and its messages."""
    command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--require-hashes"]
    command += ["--format", "json", "--progress-spinner", "off", "--timeout", "10"]
    for lock in LOCKS:
        command += ["-r", lock]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.stdout, done.stderr


def judge(text: str, messages: str = "") -> tuple[bool, list[str]]:
    """Whether the answer of pip-audit is fine, and what to say about it."""
    try:
        packages = json.loads(text)["dependencies"]
    except (ValueError, KeyError):
        packages = []
    audited = [p for p in packages if "skip_reason" not in p]
    if not packages and not _NO_NETWORK.search(messages):
        return False, [f"pip-audit failed: {messages.strip()[-500:] or 'without a message'}"]
    if not audited:
        return True, ["pip-audit: its data cannot be reached from here, nothing was audited"]
    found = [
        f"pip-audit: {p['name']} {p['version']}: {v['id']}, fixed in "
        f"{', '.join(v['fix_versions']) or 'no version yet'}"
        for p in audited
        for v in p["vulns"]
    ]
    skipped = len(packages) - len(audited)
    said = f"pip-audit: {len(audited)} packages audited, {skipped} unknown, {len(found)} findings"
    return not found, [*found, said]


def main() -> int:
    missing = [name for name in ("bandit", "pip_audit") if find_spec(name) is None]
    for name in missing:
        print(f"{name.replace('_', '-')}: not installed, nothing was looked at (make setup)")
    sound = "bandit" in missing or bandit()
    fine, lines = (True, []) if "pip_audit" in missing else judge(*pip_audit())
    for line in lines:
        print(line)
    return 0 if sound and fine else 1


if __name__ == "__main__":
    sys.exit(main())
