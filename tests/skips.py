"""Which tests are skipped on which machine, and what is said about it at the end.

With SKIPS_ALLOWED=gpu,terraform, as in .ci/run, a test that is skipped for any other reason fails
the run.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections import Counter
from collections.abc import Iterable

import pytest
import torch

REASONS = {
    "gpu": "no CUDA device",
    "chromium": "chromium is not installed: apt-get install chromium",
    "xvfb": "Xvfb is not installed: apt-get install xvfb",
    "atari": "ale-py is not installed: make setup EXTRAS=atari",
    "mujoco": "mujoco is not installed: make setup",
    "compiler": "no C compiler: apt-get install gcc libc6-dev",
    "packer": "packer is not installed: apt-get install packer",
    "cloud-init": "cloud-init is not installed: apt-get install cloud-init",
    "shellcheck": "shellcheck is not installed: apt-get install shellcheck",
    "hosts": "no network namespaces: needs root and  apt-get install iproute2",
    "terraform": "terraform is not installed, or cannot fetch its provider",
}
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason=REASONS["gpu"])
needs_mujoco = pytest.mark.skipif(
    importlib.util.find_spec("mujoco") is None, reason=REASONS["mujoco"]
)
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason=REASONS["compiler"])


def skip_without(what: str, found: object) -> None:
    if not found:
        pytest.skip(REASONS[what])


def lacks_emulator(error: BaseException) -> bool:
    """Whether a test failed because it plays a game where ale-py was left out."""
    return importlib.util.find_spec("ale_py") is None and any(
        name in str(error) for name in ("ale_py", "ale-py")
    )


def reasons(reports: Iterable[pytest.TestReport]) -> Counter[str]:
    """How many tests were skipped for each reason."""
    result = (r.longrepr[2] for r in reports if isinstance(r.longrepr, tuple))
    return Counter(reason.removeprefix("Skipped: ").strip() for reason in result)


def lines(found: Counter[str]) -> list[str]:
    """One line for each reason, the most frequent first."""
    return [
        f"skipped: {count} test{'s' if count > 1 else ''} ({reason})"
        for reason, count in sorted(found.items(), key=lambda item: (-item[1], item[0]))
    ]


def refused(found: Counter[str], allowed: str) -> list[str]:
    """Reasons that SKIPS_ALLOWED, names of `REASONS` between commas, does not cover."""
    known = {REASONS[name] for name in allowed.split(",")}
    return sorted(found.keys() - known)
