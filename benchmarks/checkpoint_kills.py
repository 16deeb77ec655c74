"""Kill a process while it writes checkpoints, many times, and see what is left.

Two kinds of kill: at random moments, until --kills of them hit a write, each run going on from what
the kill before it left; and just before every single file operation of a save (--points 1; 5:
every fifth).
After each: every checkpoint in the directory must load and hold what its step says, nothing
acknowledged may be lost, and the next start must remove what is left over. Writes a JSON file.

    python benchmarks/checkpoint_kills.py --kills 50 --points 1
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from ludus.track.checkpoint.format import checkpoint_paths, read_pointer
from ludus.track.checkpoint.reader import Loaded, load, load_newest_good
from ludus.track.checkpoint.writer import CheckpointWriter, Segment

STRIDE, KEPT_SEGMENTS = 10, 4
AUDITED = ("open", "os.rename", "os.link", "os.symlink", "os.mkdir", "os.remove", "os.rmdir")


def rows(step: int) -> dict[str, np.ndarray]:
    """Content that can be recomputed from the step alone."""
    return {"obs": np.full((500, 40), step, np.float32), "reward": np.arange(500) + step}


def save(writer: CheckpointWriter, step: int, size: int) -> None:
    names = [
        f"rows-{s}" for s in range(max(STRIDE, step - KEPT_SEGMENTS * STRIDE), step + 1, STRIDE)
    ]
    segments = [
        Segment(n, None if n in writer.linkable else rows(int(n.split("-")[1]))) for n in names
    ]
    tensors = {
        "model": {"w": torch.full((size,), float(step))},
        "optim": {"m": torch.full((size,), -float(step))},
    }
    tags = ("last", "best") if step % (3 * STRIDE) == 0 else ("last",)
    writer.save(step, tensors, {"step": step, "segments": names}, replay=segments, tags=tags)


def wrong(found: Loaded) -> str:
    """What is wrong with a loaded checkpoint; nothing if it holds what its step says."""
    step = found.step
    if found.state["step"] != step or found.warnings:
        return f"state {found.state['step']} in {step}, warnings {found.warnings}"
    if not torch.all(found.tensors["model"]["w"] == step).item():
        return f"weights of {step}"
    if not torch.all(found.tensors["optim"]["m"] == -step).item():
        return f"optimizer of {step}"
    if found.replay is None or list(found.replay.names) != found.state["segments"]:
        return f"segments of {step}"
    for name, arrays in found.replay:
        expected = rows(int(name.split("-")[1]))
        if not all(np.array_equal(arrays[k], v) for k, v in expected.items()):
            return f"segment {name} of {step}"
    return ""


def examine(folder: Path, acknowledged: int) -> list[str]:
    """Everything that is not as it should be after a kill."""
    faults = []
    paths = checkpoint_paths(folder)
    try:
        faults += [wrong(load(path)) for path in paths.values()]
        if acknowledged:
            newest = load_newest_good(folder)
            faults.append(wrong(newest))
            if newest.step < acknowledged:
                faults.append(f"step {acknowledged} was acknowledged, newest is {newest.step}")
            faults.append(wrong(load(folder, "last")))
        if read_pointer(folder, "best") is not None:
            faults.append(wrong(load(folder, "best")))
        CheckpointWriter(folder)
        faults += [wrong(load(path)) for path in checkpoint_paths(folder).values()]
        faults += [f"left over: {p.name}" for p in folder.iterdir() if p.name.startswith(".")]
    except ValueError as error:
        faults.append(f"unreadable: {error}")
    return [fault for fault in faults if fault]


def train(folder: Path, pipe: int, size: int) -> None:
    """The child: resume if possible, then save without end, telling each finished step."""
    writer = CheckpointWriter(folder, keep=2)
    step = 0
    if checkpoint_paths(folder):
        found = load_newest_good(folder)
        writer.resume_from(found.path)
        step = found.step
    os.write(pipe, b"0\n")
    while True:
        step += STRIDE
        save(writer, step, size)
        os.write(pipe, f"{step}\n".encode())
        if step % (5 * STRIDE) == 0:
            save(writer, step, size)  # the same step again: replaced without a gap


def random_kill(folder: Path, rng: random.Random, size: int) -> tuple[int, bool]:
    """Fork, kill after a while. Returns (last acknowledged step, was it writing)."""
    reader, pipe = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            train(folder, pipe, size)
        finally:
            os._exit(1)
    os.close(pipe)
    try:
        if not select.select([reader], [], [], 60)[0]:
            raise RuntimeError("the child did not start")
        time.sleep(rng.uniform(0.0, 0.1))
    finally:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        raise RuntimeError("the child ended by itself")
    answer = b""
    while block := os.read(reader, 65536):
        answer += block
    os.close(reader)
    steps = [int(line) for line in answer.split(b"\n")[:-1]]
    return max(steps), any(p.name.startswith(".") for p in folder.iterdir())


def point_kill(folder: Path, point: int, size: int) -> bool:
    """One child that saves twice and is killed before its file operation number `point`."""
    child = os.fork()
    if child == 0:
        try:
            writer = CheckpointWriter(folder, keep=1)
            found = load_newest_good(folder)
            writer.resume_from(found.path)
            _kill_at(point, folder)
            save(writer, found.step + STRIDE, size)
            save(writer, found.step + STRIDE, size)
            os._exit(0)
        except BaseException:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0:
        raise RuntimeError(f"the child failed at point {point}")
    return os.WIFSIGNALED(status)


def _kill_at(point: int, folder: Path) -> None:
    count = 0

    def tick() -> None:
        nonlocal count
        count += 1
        if count == point:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(event: str, args: tuple[object, ...]) -> None:
        if event in AUDITED and (event != "open" or str(args[0]).startswith(str(folder))):
            tick()

    real = os.fsync

    def fsync(fd: int) -> None:
        tick()
        real(fd)

    os.fsync = fsync
    sys.addaudithook(audit)


def every_point(root: Path, size: int, stride: int) -> tuple[int, list[str]]:
    """Kill before each file operation of a save, starting from the same directory each time."""
    start = root / "start"
    writer = CheckpointWriter(start, keep=2)
    for step in (10, 20, 30, 40, 50):
        save(writer, step, size)
    faults: list[str] = []
    count, point = 0, 1
    killed = True
    while killed:
        folder = root / "point"
        shutil.copytree(start, folder, symlinks=True)
        killed = point_kill(folder, point, size)
        faults += [f"point {point}: {fault}" for fault in examine(folder, 50)]
        shutil.rmtree(folder)
        count, point = count + killed, point + stride
    return count, faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--points", type=int, default=0, metavar="STRIDE", help="0: none")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--size", type=int, default=100_000, help="floats per tensor file")
    default = Path(__file__).parent / "results" / "checkpoint_kills.json"
    parser.add_argument("--out", type=Path, default=default)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rng = random.Random(args.seed)
    started = time.monotonic()
    faults: list[str] = []
    kills = writing = 0
    newest = points = 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        folder.mkdir()
        while writing < args.kills:
            if kills > 10 * args.kills:
                raise RuntimeError(f"only {writing} of {kills} kills hit a write")
            answer, was_writing = random_kill(folder, rng, args.size)
            newest, writing = max(newest, answer), writing + was_writing
            faults += [f"kill {kills}: {fault}" for fault in examine(folder, newest)]
            kills += 1
        if args.points:
            points, found = every_point(Path(place), args.size // 100, args.points)
            faults += found
    result = {
        "kills": kills,
        "killed_while_writing": writing,
        "operations_killed_before": points,
        "newest_step": newest,
        "faults": faults,
        "seed": args.seed,
        "seconds": round(time.monotonic() - started, 1),
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
