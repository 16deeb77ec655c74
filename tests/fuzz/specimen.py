"""A bench with one run that has every file a run may have, for targets to damage."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ludus.bench.matrix import Cell, Matrix
from ludus.envs.render.screenshots import png
from ludus.evals.film import Film
from ludus.track.atomic_files import write_json
from ludus.track.checkpoint import format as layout
from ludus.track.metrics.trackers import _identity
from ludus.track.run_dir.rundir import RunDir
from tests.cli.conftest import call, train

WORDS = (
    "checkpoint_every=120", "eval.every=120", "eval.episodes=2", "eval.best_window=2",
    "tensorboard=on", "algo.capacity=400", "env.num=2",
)  # fmt: skip
# Readers parse it again and again, and PyYAML is slow. The rest are defaults.
SHORT = "algo: {name: prioritized-dqn}\nenv: {id: ludus/Identity-v0}\nrun: {seed: 1, steps: 240}\n"


@dataclass(frozen=True)
class Specimen:
    bench: Path

    @property
    def run(self) -> RunDir:
        return RunDir(self.bench / "x")

    def find(self, pattern: str) -> Path:
        """The last file of the bench that fits."""
        return sorted(self.bench.glob(pattern))[-1]

    def names(self) -> set[str]:
        """Its files, with words in place of numbers and of names that differ."""
        paths = [p for p in self.bench.rglob("*") if p.is_symlink() or not p.is_dir()]
        return {kind_of(str(path.relative_to(self.bench))) for path in paths}


def kind_of(name: str) -> str:
    name = re.sub(r"\d{12,}", "STEP", name, count=1)
    name = re.sub(r"replay/.*", "replay/ARRAY", name)
    name = re.sub(r"tb/events.out.*", "tb/EVENTS", name)
    return re.sub(r"eval/[^/]*\.", "eval/NAME.", name)


def make_specimen(folder: Path) -> Specimen:
    words = ("--run", "x", *WORDS)
    answer = train(folder, *words, algo="prioritized-dqn")
    assert answer.code == 0, answer.err
    made = Specimen(folder)
    assert call("eval", made.run.path, "--episodes", "2", "--no-video").code == 0
    cell = Cell("prioritized-dqn", "ludus/Identity-v0", 1, "x", state="finished", attempts=1)
    Matrix(folder, cells=[cell]).save()
    for name in ("output", "x/videos", "x/crash", "x/screenshots"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "output" / "x.txt").write_text("error[E205] it broke\n  fix: mend it\n")
    (folder / "x" / "crash" / "actor-0-0.stack").write_text('  File "a.py", line 3 in step\n')
    film = Film(Path("a.mp4"), 1.0, 3, 3, 30.0, 1, 240, True, "abc", 5.0)
    write_json(made.run.videos / "greedy-240-1.json", film.as_dict())
    (made.run.videos / "greedy-240-1.mp4").write_bytes(b"\0\0\0\x18ftypmp42" + bytes(2000))
    picture = png(np.zeros((4, 4), np.uint8))
    (made.run.screenshots / "000001-score1.png").write_bytes(picture)
    _identity(made.run)
    return made


def seal(folder: Path, name: str) -> None:
    """Write a checkpoint's manifest anew for a file that was changed, as its author could."""
    manifest = layout.read_manifest(folder)
    data = (folder / name).read_bytes()
    stored = manifest.files[name]
    manifest.files[name] = stored._replace(sha256=hashlib.sha256(data).hexdigest(), bytes=len(data))
    (folder / layout.MANIFEST).write_bytes(manifest.to_bytes())
