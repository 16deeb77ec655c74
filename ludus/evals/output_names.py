"""File names of evaluations and videos. Only the same play of the same weights replaces a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ludus.track.atomic_files import read_json
from ludus.track.run_dir.rundir import run_of, slug


@dataclass(frozen=True)
class Output:
    """The properties of an evaluation or a video that decide its file name."""

    label: str  # of the rules
    checkpoint: Path  # of the agent
    weights: str | None  # their hash; None if no agent played
    facts: Mapping[str, Any]  # seed, episodes: as in the JSON file
    suffix: str  # the facts in a file name, for a second file of the same weights


def output_path(played: Output, folder: Path, ending: str) -> Path:
    """`<label>-<ending>` in `folder`, if it is free or holds the same output. If it holds other
    weights, the agent's name is added, then their hash; if only the facts differ, the suffix.

    Inside the agent's own run its name is redundant, and a step has one set of weights.
    """
    home, name = run_of(played.checkpoint), agent_name(played.checkpoint)
    own = home is not None and folder.resolve().parent == home.path
    path = folder
    for who in ("",) if own else ("", f"-{name}", f"-{name}-{played.weights}"):
        for how in ("", f"-{played.suffix}"):
            path = folder / f"{played.label}{who}{how}-{ending}"
            facts = path.with_suffix(".json")
            if not path.exists() and not facts.exists():
                return path
            known = read_json(facts)
            if not own and known.get("weights") != played.weights:
                break
            if all(known.get(key) == value for key, value in played.facts.items()):
                return path
    return path


def agent_name(checkpoint: Path) -> str:
    """The name of its run, else of the file, or of its folder if the file has the usual name."""
    home, path = run_of(checkpoint), checkpoint.resolve()
    if home is not None:
        return slug(home.name)
    name = path.name.removesuffix(".safetensors")
    return slug(path.parent.name if name == "model" else name)
