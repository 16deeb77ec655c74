"""`ludus doctor`: is this machine fit to train on? Looks, and changes nothing but a cache."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from ludus.cli.output import print_json, say
from ludus.cli.training import Json, RunsDir
from ludus.errors import USER_ERROR, install_extra
from ludus.process.limits import available_cores

_NEEDED = ("torch", "numpy", "gymnasium", "pydantic", "safetensors", "tensorboard", "zstandard")
_EXTRAS = {
    "ale-py": "atari",
    "mujoco": "mujoco",
    "imageio-ffmpeg": "video",
    "wandb": "wandb",
    "trackio": "trackio",
}


@dataclass(frozen=True)
class Finding:
    name: str
    level: str  # ok | note | warning | error
    text: str
    fix: str = ""


def doctor(
    gpu: Annotated[bool, typer.Option("--gpu", help="A GPU is required.")] = False,
    runs_dir: RunsDir = None,
    as_json: Json = False,
) -> int:
    """Check whether this machine is fit to train on."""
    findings = examine(Path(runs_dir or os.environ.get("LUDUS_RUNS_DIR") or "runs"), gpu)
    if as_json:
        print_json([asdict(f) for f in findings])
    else:
        wide = max(len(f.name) for f in findings)
        for f in findings:
            say(f"{f.level:<8} {f.name:<{wide}} {f.text}" + (f"   fix: {f.fix}" if f.fix else ""))
    return USER_ERROR if any(f.level == "error" for f in findings) else 0


def examine(runs_dir: Path, gpu: bool) -> list[Finding]:
    checks: tuple[Callable[[], list[Finding]], ...] = (
        _python,
        _packages,
        _extras,
        lambda: _torch(gpu),
        _environments,
        _memory,
        lambda: _disk(runs_dir),
        _shared_memory,
        _looking,
        _replay,
        _clock,
    )
    return [finding for check in checks for finding in check()]


def _python() -> list[Finding]:
    text = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    return [Finding("python", "ok", text)]


def _packages() -> list[Finding]:
    found = []
    for name in _NEEDED:
        try:
            found.append(Finding(name, "ok", metadata.version(name)))
        except metadata.PackageNotFoundError:
            found.append(Finding(name, "error", "is not installed", "make setup"))
    return found


def _extras() -> list[Finding]:
    found = []
    for package, extra in _EXTRAS.items():
        try:
            found.append(Finding(package, "ok", metadata.version(package)))
        except metadata.PackageNotFoundError:
            hint = install_extra(extra)
            found.append(Finding(package, "note", f"not installed (extra {extra})", hint))
    return found


def _torch(gpu: bool) -> list[Finding]:
    try:
        torch = importlib.import_module("torch")
    except Exception as error:  # a broken install raises anything from OSError to ImportError
        return [Finding("torch", "error", f"cannot be imported: {error}", "install it again")]
    found = [
        Finding(
            "cpu",
            "ok",
            f"{available_cores()} cores usable, torch would use "
            f"{torch.get_num_threads()} threads (run.threads decides)",
        )
    ]
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        found.append(Finding("gpu", "ok", ", ".join(names)))
    else:
        level = "error" if gpu else "note"
        found.append(
            Finding(
                "gpu",
                level,
                "none that torch can use",
                "a CUDA build of torch and a driver" if gpu else "",
            )
        )
    return found


def _environments() -> list[Finding]:
    """One step of a plain environment and of one that needs compiled parts."""
    import gymnasium

    found = []
    for name in ("CartPole-v1", "LunarLander-v3"):
        try:
            env = gymnasium.make(name)
            env.reset(seed=0)
            env.step(env.action_space.sample())
            env.close()
            found.append(Finding(name, "ok", "steps"))
        except Exception as error:  # whatever its packages raise is the finding
            found.append(Finding(name, "error", str(error), "pip install 'gymnasium[box2d]'"))
    return found


def _memory() -> list[Finding]:
    from ludus.process.limits import memory
    from ludus.units import show_bytes

    found = memory()
    text = f"{show_bytes(found.free)} free of {show_bytes(found.total)}{found.limited_by}"
    if found.free >= 1e9:
        return [Finding("memory", "ok", text)]
    fix = f"raise the limit of {found.limit}" if found.limit else "close programs"
    return [Finding("memory", "warning", text, fix)]


def _disk(runs_dir: Path) -> list[Finding]:
    from ludus.units import show_bytes

    place = runs_dir.absolute()
    while not place.exists():
        place = place.parent
    import tempfile

    try:
        with tempfile.NamedTemporaryFile(dir=place):
            pass
    except OSError as error:
        return [
            Finding(
                "runs", "error", f"{place} cannot be written: {error.strerror}", "--runs-dir DIR"
            )
        ]
    free = shutil.disk_usage(place).free
    level = "warning" if free < 5e9 else "ok"
    return [Finding("runs", level, f"{runs_dir} can be written, {show_bytes(free)} free")]


def _shared_memory() -> list[Finding]:
    from ludus.units import show_bytes

    place = Path("/dev/shm")  # nosec B108
    if not place.is_dir():
        return [Finding("shm", "note", "no /dev/shm; worker processes use files")]
    free = shutil.disk_usage(place).free
    if free < 256e6:
        return [Finding("shm", "warning", f"{show_bytes(free)} free", "docker run --shm-size=1g")]
    return [Finding("shm", "ok", f"{show_bytes(free)} free")]


def _looking() -> list[Finding]:
    """What videos and windows need."""
    from ludus.envs.render.viewer import check_display
    from ludus.errors import LudusError

    found = []
    try:
        import imageio_ffmpeg

        found.append(Finding("ffmpeg", "ok", imageio_ffmpeg.get_ffmpeg_exe()))
    except (ImportError, RuntimeError):
        hint = install_extra("video")
        found.append(Finding("ffmpeg", "note", "not found; needed for videos only", hint))
    try:
        check_display()
        found.append(Finding("display", "ok", "there is one"))
    except LudusError:
        text = "none; needed for  ludus play  and  --watch  only"
        found.append(Finding("display", "note", text, "ludus record RUN  needs none"))
    return found


def _replay() -> list[Finding]:
    """Replay on a CPU copies frames in C where it can be compiled."""
    from ludus.replay.native import bindings as native

    built = native.build()
    if built.library is not None:
        return [Finding("replay", "ok", built.text)]
    mend = "a C compiler: cc, or CC=" if "no C compiler" in built.text else ""
    return [Finding("replay", "note", f"{built.text}; slower on a CPU", mend)]


def _clock() -> list[Finding]:
    """A clock before this release was made breaks run order and heartbeats."""
    year = time.localtime().tm_year
    if year < 2025:
        return [Finding("clock", "error", f"says it is {year}", "set the system clock")]
    return [Finding("clock", "ok", time.strftime("%Y-%m-%d %H:%M:%S %Z"))]
