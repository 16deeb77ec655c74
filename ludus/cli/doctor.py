"""`ludus doctor`: check whether this machine can train. Changes nothing but a cache."""

from __future__ import annotations

import importlib
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from ludus.cli.output import print_json, say
from ludus.cli.training import Json, RunsDir, runs_root
from ludus.errors import USER_ERROR, LudusError, install_extra
from ludus.process.limits import available_cores, memory

_NEEDED = ("torch", "numpy", "gymnasium", "pydantic", "safetensors", "tensorboard", "zstandard")
_EXTRAS = {
    "ale-py": "atari",
    "mujoco": "mujoco",
    "imageio-ffmpeg": "video",
    "ray": "ray",
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
    """Check whether this machine can train."""
    findings = list(examine(runs_root(runs_dir), gpu))
    if as_json:
        print_json([asdict(f) for f in findings])
    else:
        wide = max(len(f.name) for f in findings)
        for f in findings:
            say(f"{f.level:<8} {f.name:<{wide}} {f.text}" + (f"   fix: {f.fix}" if f.fix else ""))
    return USER_ERROR if any(f.level == "error" for f in findings) else 0


def examine(runs_dir: Path, gpu: bool) -> Iterator[Finding]:
    text = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield Finding("python", "ok", text)
    for package in (*_NEEDED, *_EXTRAS):
        yield _package(package)
    yield from _torch(gpu)
    yield from _environments()
    yield _memory()
    yield _disk(runs_dir)
    yield _shared_memory()
    yield from _rendering()
    yield _replay()
    yield _clock()


def _package(name: str) -> Finding:
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        if name in _NEEDED:
            return Finding(name, "error", "is not installed", "make setup")
        extra = _EXTRAS[name]
        return Finding(name, "note", f"not installed (extra {extra})", install_extra(extra))
    return _mujoco(version) if name == "mujoco" else Finding(name, "ok", version)


def _mujoco(version: str) -> Finding:
    from ludus.envs.mujoco import FIX, WHY_NOT, too_new

    if too_new(version):
        return Finding("mujoco", "warning", f"{version} is refused: {WHY_NOT}", FIX)
    return Finding("mujoco", "ok", version)


def _torch(gpu: bool) -> Iterator[Finding]:
    try:
        torch = importlib.import_module("torch")
    except Exception as error:  # a broken install raises anything from OSError to ImportError
        yield Finding("torch", "error", f"cannot be imported: {error}", "install it again")
        return
    threads = f"torch would use {torch.get_num_threads()} threads (run.threads decides)"
    yield Finding("cpu", "ok", f"{available_cores()} cores usable, {threads}")
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        yield Finding("gpu", "ok", ", ".join(names))
    else:
        level, fix = ("error", "a CUDA build of torch and a driver") if gpu else ("note", "")
        yield Finding("gpu", level, "none that torch can use", fix)


def _environments() -> Iterator[Finding]:
    """One step of a plain environment and of one that needs compiled parts."""
    import gymnasium

    for name in ("CartPole-v1", "LunarLander-v3"):
        try:
            env = gymnasium.make(name)
            env.reset(seed=0)
            env.step(env.action_space.sample())
            env.close()
            yield Finding(name, "ok", "steps")
        except Exception as error:  # whatever its packages raise is the finding
            yield Finding(name, "error", str(error), "pip install 'gymnasium[box2d]'")


def _memory() -> Finding:
    from ludus.units import show_bytes

    found = memory()
    text = f"{show_bytes(found.free)} free of {show_bytes(found.total)}{found.limited_by}"
    if found.free >= 1e9:
        return Finding("memory", "ok", text)
    fix = f"raise the limit of {found.limit}" if found.limit else "close programs"
    return Finding("memory", "warning", text, fix)


def _disk(runs_dir: Path) -> Finding:
    from ludus.units import show_bytes

    place = runs_dir.absolute()
    while not place.exists():
        place = place.parent
    try:
        with tempfile.NamedTemporaryFile(dir=place):
            pass
    except OSError as error:
        text = f"{place} cannot be written: {error.strerror}"
        return Finding("runs", "error", text, "--runs-dir DIR")
    free = shutil.disk_usage(place).free
    level = "warning" if free < 5e9 else "ok"
    return Finding("runs", level, f"{runs_dir} can be written, {show_bytes(free)} free")


def _shared_memory() -> Finding:
    from ludus.units import show_bytes

    place = Path("/dev/shm")  # nosec B108
    if not place.is_dir():
        return Finding("shm", "note", "no /dev/shm; worker processes use files")
    free = shutil.disk_usage(place).free
    if free < 256e6:
        return Finding("shm", "warning", f"{show_bytes(free)} free", "docker run --shm-size=1g")
    return Finding("shm", "ok", f"{show_bytes(free)} free")


def _rendering() -> Iterator[Finding]:
    """Videos and windows."""
    from ludus.envs.render.viewer import check_display

    try:
        import imageio_ffmpeg

        yield Finding("ffmpeg", "ok", imageio_ffmpeg.get_ffmpeg_exe())
    except (ImportError, RuntimeError):
        text = "not found; needed for videos only"
        yield Finding("ffmpeg", "note", text, install_extra("video"))
    try:
        check_display()
        yield Finding("display", "ok", "available")
    except LudusError:
        text = "none; needed for  ludus play  and  --watch  only"
        yield Finding("display", "note", text, "ludus record RUN  needs none")


def _replay() -> Finding:
    """Replay on a CPU copies frames in C if a compiler is available."""
    from ludus.replay.native import bindings as native

    built = native.build()
    if built.library is not None:
        return Finding("replay", "ok", built.text)
    fix = "a C compiler: cc, or CC=" if "no C compiler" in built.text else ""
    return Finding("replay", "note", f"{built.text}; slower on a CPU", fix)


def _clock() -> Finding:
    """A clock before this release was made breaks run order and heartbeats."""
    year = time.localtime().tm_year
    if year < 2025:
        return Finding("clock", "error", f"says it is {year}", "set the system clock")
    return Finding("clock", "ok", time.strftime("%Y-%m-%d %H:%M:%S %Z"))
