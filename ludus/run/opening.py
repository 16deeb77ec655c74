"""What a run says about itself when it begins."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ludus.config import Config
from ludus.envs.atari.native import BUILD_SECONDS
from ludus.envs.cores import available_cores
from ludus.envs.progress import PATIENCE
from ludus.run.fleet import Fleet
from ludus.units import show_count


def opening(cfg: Config, path: Path, step: int, steps: int, facts: Mapping[str, Any]) -> list[str]:
    """The task, the rules of an Atari game, and how it is computed."""
    length = f"step {show_count(step)} -> {show_count(steps)}"
    lines = [f"{cfg.algo_name} on {cfg.env.id}, seed {cfg.run.seed}, {length}, in {path}"]
    rules = cfg.env.score_facts
    if rules and cfg.env.atari is not None:
        frames = show_count(steps * cfg.env.atari.skip)
        number = f"{cfg.run.actors * cfg.env.slots} environments, {frames} frames"
        lines.append(f"protocol {named(rules)}, {number}")
    return [*lines, f"compute {shown_facts(facts)}"] if facts else lines


def crew(cfg: Config) -> str:
    """The actors that are being started, and what they do before they answer."""
    number, emulators = cfg.run.actors, cfg.env.slots
    told, which = (f"{number} actors", "each") if number > 1 else ("1 actor", "which")
    seconds = BUILD_SECONDS * emulators * math.ceil(number / available_cores())
    if not cfg.env.native_atari or seconds <= PATIENCE:
        return told
    return f"{told}, {which} builds {emulators} emulators, about {seconds:.0f} s"


def shown_facts(facts: Mapping[str, Any]) -> str:
    words = {k: str(v).lower() if isinstance(v, bool) else v for k, v in facts.items() if v != ""}
    why = words.pop("why_precision", None)
    if why and "precision" in words:
        words["precision"] = f"{words['precision']} ({why})"
    return ", ".join(f"{key} {value}" for key, value in words.items())


def named(rules: Mapping[str, Any]) -> str:
    """The protocol that is among some facts, and its hash; empty where there is none."""
    return f"{rules['protocol']} ({rules['protocol_hash']})" if "protocol" in rules else ""


def with_rules(text: str, rules: Mapping[str, Any]) -> str:
    """A score and what it was made under."""
    return f"{text}, protocol {named(rules)}" if named(rules) else text


def status_facts(cfg: Config, compute: Mapping[str, Any]) -> dict[str, Any]:
    """What status.json says of a run besides how far it is."""
    run, env = cfg.run, cfg.env
    facts = {"algo": cfg.algo_name, "env": env.id, "seed": run.seed, "steps": run.steps}
    facts |= {"tag": cfg.log.tag} if cfg.log.tag else {}
    return {**facts, "compute": compute, **env.score_facts}


def actor_facts(fleet: Fleet) -> dict[str, Any]:
    """What status.json says of actors in processes of their own."""
    pids = fleet.pids()
    if not pids:
        return {}
    told = {k: round(v, 2) for k, v in fleet.metrics().items()}
    return {"actors": {**told, "pids": " ".join(map(str, pids))}}
