"""Names for what an agent leaves: nothing is replaced but the same play of the same weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ludus.track.atomic_files import read_json
from ludus.track.run_dir.rundir import run_of, slug


@dataclass(frozen=True)
class Played:
    """What is to be written, as far as it tells one file from another."""

    label: str  # by which rules
    checkpoint: Path  # that the agent is of
    weights: str | None  # their hash; None where no agent played
    facts: Mapping[str, Any]  # seed, episodes: as they stand in the JSON file
    told: str  # the same in a name, for a second file of the same weights


def place_of(played: Played, folder: Path, ending: str) -> Path:
    """`<label>-<ending>` in `folder` if that is free or the same once more. Where it is of other
    weights, the agent's name goes into it, then their hash; where only the facts differ, those do.

    In the folder of its own run an agent's name says nothing, and a step has one set of weights.
    """
    home, name = run_of(played.checkpoint), name_of(played.checkpoint)
    own = home is not None and folder.resolve().parent == home.path
    path = folder
    for who in ("",) if own else ("", f"-{name}", f"-{name}-{played.weights}"):
        for how in ("", f"-{played.told}"):
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


def name_of(checkpoint: Path) -> str:
    """Of the run that it is of, else of the file; of its folder where the file is called as all
    of them are."""
    home, path = run_of(checkpoint), checkpoint.resolve()
    if home is not None:
        return slug(home.name)
    name = path.name.removesuffix(".safetensors")
    return slug(path.parent.name if name == "model" else name)
