"""Messages of a run at its start and when it ends early."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ludus.envs.atari.native import BUILD_SECONDS
from ludus.envs.build_progress import PATIENCE
from ludus.errors import LudusError
from ludus.process.limits import available_cores
from ludus.run.loop import Loop
from ludus.settings.resolve import Config
from ludus.settings.sections import ACTOR_ROLE
from ludus.settings.trust import flags_for, needs_whole
from ludus.track.checkpoint.format import newest_resumable
from ludus.track.run_dir.rundir import RunDir
from ludus.track.run_dir.status import StatusWriter
from ludus.units import show_count, show_seconds


def start_messages(cfg: Config, path: Path, loop: Loop) -> list[str]:
    """Describe the task, the Atari protocol, the computation and the checkpoint intervals."""
    step, steps, every = loop.step, loop.steps, loop.checkpoint_every.period
    length = f"step {show_count(step)} -> {show_count(steps)}"
    lines = [f"{cfg.algo_name} on {cfg.env.id}, seed {cfg.run.seed}, {length}, in {path}"]
    rules = cfg.env.score_facts
    if rules and cfg.env.atari is not None:
        frames = show_count(steps * cfg.env.atari.skip)
        number = f"{cfg.run.actors * cfg.env.num_envs} environments, {frames} frames"
        lines.append(f"protocol {protocol_name(rules)}, {number}")
    lines += [f"compute {shown_facts(loop.compute_info)}"] if loop.compute_info else []
    return [*lines, f"checkpoints {checkpoint_schedule(cfg, every, step)}"] if every else lines


def checkpoint_schedule(cfg: Config, every: int, step: int = 0) -> str:
    """Describe when a run at `step` will be saved. `every`: steps from build.checkpoint_interval;
    with barriers it is more than `run.checkpoint_steps`."""
    steps, seconds = cfg.run.steps, cfg.run.checkpoint_seconds
    by_time = "" if seconds is None else f" and every {show_seconds(seconds)}"
    if (step // every + 1) * every < steps:
        return f"every {show_count(every)} steps{by_time}, {cfg.run.keep} kept"
    return f"only at the end (after {show_count(steps)} steps){by_time}"


def learned_nothing(cfg: Config, loop: Loop) -> str:
    """Describe a run that ends without a single update; "" for other runs."""
    plan, steps = loop.learner.plan, cfg.run.steps
    if loop.learner.updates:
        return ""
    text = f"0 updates: nothing was learned in {show_count(loop.step)} steps"
    if plan.warmup > steps:
        less, more = show_count(max(1, steps // 3)), show_count(3 * plan.warmup)
        begins = f"learning begins at algo.warmup={show_count(plan.warmup)}"
        return f"{text}; {begins}: algo.warmup={less} or steps={more}"
    return f"{text}; the first update needs more of them: a higher steps="


def unsaved_steps(step: int, saved: int | None) -> str:
    """Describe the unsaved steps of a run that ended at `step`; newest checkpoint: `saved`."""
    if saved == step:
        return ""
    return f"nothing was saved{'' if saved is None else f' since step {saved}'}"


def env_failed(error: LudusError, cfg: Config, run: RunDir, step: int) -> LudusError:
    """Add the saved state and the commands to type to an environment error that ends a run at
    `step`. For errors of actors, add the flags of the command. Return other errors unchanged."""
    if error.code not in ("E202", "E203", "E205"):
        fix = error.fix.replace(f"ludus resume {run.path} ", f"{resume_command(cfg, run)} ")
        return error if fix == error.fix else _with(error, error.where, fix)
    saved = newest_resumable(run.checkpoints)
    again, restart = resume_command(cfg, run), "env.on_error=restart"
    ways = [error.fix] if error.fix else []
    ways += [f"a checkpoint was saved at step {saved}:  {again}  goes on"] if saved else []
    if error.code == "E205" and cfg.env.on_error != "restart" and not cfg.env.native_atari:
        typed = f"{again} {restart}" if saved else restart
        ways.append(f"{typed}  makes an environment that fails again and goes on")
    ways.append(f"the whole traceback is in {run.log}")
    where = "; ".join(part for part in (error.where, f"step {step} of the run") if part)
    return _with(error, where, ";\n       ".join(ways))


def _with(error: LudusError, where: str, fix: str) -> LudusError:
    code, what, why = error.code, error.what, error.why
    return LudusError(code, what, where=where, why=why, fix=fix, exit_code=error.exit_code)


def starting_actors(cfg: Config) -> str:
    """Describe the actors that are starting and the time they need."""
    number, emulators = cfg.run.actors, cfg.env.num_envs
    text, which = (f"{number} actors", "each") if number > 1 else ("1 actor", "which")
    if cfg.run.capabilities.on_cluster and cfg.ray.resource == ACTOR_ROLE:
        return f"{text}, on machines that run  ludus actor --join {cfg.ray.address}"
    seconds = BUILD_SECONDS * emulators * math.ceil(number / available_cores())
    if not cfg.env.native_atari or seconds <= PATIENCE:
        return text
    return f"{text}, {which} builds {emulators} emulators, about {seconds:.0f} s"


def shown_facts(facts: Mapping[str, Any]) -> str:
    words = {k: str(v).lower() if isinstance(v, bool) else v for k, v in facts.items() if v != ""}
    why = words.pop("why_precision", None)
    if why and "precision" in words:
        words["precision"] = f"{words['precision']} ({why})"
    return ", ".join(f"{key} {value}" for key, value in words.items())


def protocol_name(rules: Mapping[str, Any]) -> str:
    """Return the protocol in `rules` and its hash; "" if there is none."""
    return f"{rules['protocol']} ({rules['protocol_hash']})" if "protocol" in rules else ""


def with_rules(text: str, rules: Mapping[str, Any]) -> str:
    """Add the protocol to a score."""
    return f"{text}, protocol {protocol_name(rules)}" if protocol_name(rules) else text


def resume_command(cfg: Config, run: RunDir) -> str:
    """Return the command that resumes a run, with the flags for its own code."""
    return f"ludus resume {shlex.quote(str(run.path))}{_flags(cfg)}"


def _flags(cfg: Config) -> str:
    return flags_for(cfg.tree(), needs_whole(cfg))


def status_writer(cfg: Config, place: RunDir, compute: Mapping[str, Any] = {}) -> StatusWriter:
    """Make the writer of status.json with the facts that do not change."""
    run, env = cfg.run, cfg.env
    facts = {"algo": cfg.algo_name, "env": env.id, "seed": run.seed, "steps": run.steps}
    facts |= {"tag": cfg.log.tag} if cfg.log.tag else {}
    facts |= {"compute": compute, **env.score_facts}
    return StatusWriter(place, facts=facts, flags=_flags(cfg))


def live_facts(loop: Loop) -> dict[str, Any]:
    """Return the facts for status.json on a GPU, and on actors in separate processes."""
    gpu, found = loop.gpu, dict[str, Any]()
    if gpu is not None:
        idle = gpu.idle
        found["gpu_idle"] = f"not available: {gpu.why}" if idle is None else round(idle, 3)
    pids = loop.fleet.pids()
    if pids:
        numbers = {k: round(v, 2) for k, v in loop.fleet.metrics().items()}
        found["actors"] = {**numbers, "pids": " ".join(map(str, pids))}
    if loop.roles is not None:
        numbers = {k: round(v, 2) for k, v in loop.roles.metrics().items()}
        found["replay_roles"] = {**numbers, "pids": " ".join(map(str, loop.roles.pids()))}
    return found
