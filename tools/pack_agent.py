"""Make a finished run one of the agents that come with the package.

    python tools/pack_agent.py RUN NAME

Kept are the weights of its last checkpoint and its logs, without optimizer and replay, and
without what names a machine, a user or a place. Not for checkpoints to resume from.
"""

import json
import shutil
import sys
from pathlib import Path

from ludus.track.checkpoint.reader import load_file

AGENTS = Path(__file__).parent.parent / "ludus" / "agents"
LOGS = ("config.yaml", "config.user.yaml", "episodes.csv", "evals.csv", "metrics.jsonl")
FACTS = ("run", "seed", "config_sha256", "lineage", "python", "versions")


def pack(run: Path, name: str) -> Path:
    """The folder that was written."""
    folder = AGENTS / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copyfile(run / "checkpoints/last/model.safetensors", folder / "model.safetensors")
    assert not load_file(folder / "model.safetensors").warnings, "weights carry their digest"
    for log in LOGS:
        shutil.copyfile(run / log, folder / log)
    manifest = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
    _, *words = manifest["command"]
    if "--runs-dir" in words:
        at = words.index("--runs-dir")
        del words[at : at + 2]
    machine = {key: manifest["machine"][key] for key in ("cpu", "cores")}
    kept = {key: manifest[key] for key in FACTS} | {
        "command": ["ludus", *words],
        "machine": machine,
    }
    (folder / "manifest.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return folder


if __name__ == "__main__":
    place = pack(Path(sys.argv[1]), sys.argv[2])
    size = sum(file.stat().st_size for file in place.iterdir())
    print(f"{place}: {size / 1e3:.0f} kB")
