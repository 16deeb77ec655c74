"""Settings of a continued run: which changes are allowed, and how differences are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from ludus.errors import LudusError
from ludus.secret_masking import masked
from ludus.settings.keys import SECTIONS, KeyFinder, check_one_length, split_override
from ludus.settings.layers import Layered, Rank, leaves
from ludus.settings.resolve import BEFORE, STORED, Config, Resolved, build, from_tree, models_of
from ludus.units import parse_count

# These settings do not change the results up to the step where the run continues.
FREE = (
    "run.steps", "run.time", "run.checkpoint_time", "run.keep", "run.device", "run.capture",
    "run.replay_on", "run.imports", "run.grace", "env.render", "env.timeout", "env.on_error",
    "actor.*", "ray.*", "log.*", "eval.*",
)  # fmt: skip
# Settings that older runs lack: without a typed value they keep the old behaviour.
_LATER = tuple(f"{section}.{name}" for section, table in BEFORE.items() for name in table)
Difference = tuple[str, Any, Any]


def differences(old: Config, new: Config) -> list[Difference]:
    """Return (key, old value, new value) of all different settings; absent values are None. Secrets
    are ignored: files do not contain them, and they may change."""
    a, b = ({".".join(k): v for k, v in leaves(masked(c.tree()))} for c in (old, new))
    return [(k, a.get(k), b.get(k)) for k in {**a, **b} if a.get(k) != b.get(k)]


def is_free(key: str) -> bool:
    return any(fnmatchcase(key, glob) for glob in FREE)


def extended(stored: Config, overrides: Sequence[str | tuple[str, Any]], step: int = 0) -> Resolved:
    """Apply the overrides of `ludus resume RUN key=value ...` to the stored settings. `step`: the
    current step of the run."""
    models = models_of(stored.algo_name)
    layers = Layered()
    layers.lay(stored.tree(), Rank.FILE, STORED)
    finder = KeyFinder(models, layers)
    typed = [split_override(item) if isinstance(item, str) else item for item in overrides]
    check_one_length(typed, "command line")
    for text, value in typed:
        key, value = finder.find(text, value, "command line", stored.env.id)
        if key == ("run", "steps") and isinstance(value, str) and value.startswith("+"):
            value = stored.run.steps + _more(value)
        layers.put(key, value, Rank.COMMAND, "command line")
    changed, sources = build(models, layers)
    new = continued(stored, changed)
    if new.run.steps < min(step, stored.run.steps):
        raise LudusError(
            "E104",
            f"steps={new.run.steps}: the run is at step {step} already",
            where="command line",
            why="a run cannot go back; its schedules would end before their start",
            fix=f"ludus resume RUN   goes on to step {stored.run.steps};  steps=+100k  adds to it",
        )
    return Resolved(new, sources)


def _more(text: str) -> int:
    try:
        return parse_count(text[1:])
    except ValueError as error:
        raise LudusError(
            "E102", f"steps={text}: {error}", where="command line", fix="steps=+100k"
        ) from None


def matching(saved: Any, cfg: Config, checkpoint: str) -> Config:
    """Return the settings to continue with from a checkpoint that was made with `saved`. Edits of
    config.yaml count as typed. Raise E306 without `saved`, which every version writes."""
    if not isinstance(saved, Mapping) or not saved:
        raise LudusError(
            "E306",
            f"checkpoint {checkpoint} does not hold the settings it was made with",
            where=f"state.json of checkpoint {checkpoint}",
            why="the file was changed: config.yaml cannot be compared with it",
            fix="ludus resume RUN --at STEP  goes on from another checkpoint;  "
            "ludus train ... --init-from RUN  takes these weights for a new run",
        )
    where = f"config.yaml of the run, against checkpoint {checkpoint}"
    algo = saved.get("algo")
    names = (algo.get("name") if isinstance(algo, Mapping) else None), cfg.algo_name
    if names[0] != names[1]:
        raise _refused([("algo.name", *names)], where)
    kept = continued(from_tree(saved, f"checkpoint {checkpoint}"), cfg, where=where)
    # A checkpoint never names modules to import.
    run = kept.run.model_copy(update={"imports": cfg.run.imports})
    return kept.model_copy(update={"run": run})


def continued(
    stored: Config,
    new: Config,
    sources: Mapping[str, str] | None = None,
    where: str = "config.yaml of the run",
) -> Config:
    """Return the settings of a continued run. Raise E307 with all refused changes.

    `sources` (of a resolved command) distinguishes typed values from defaults, which stay as
    stored. `where`: the source of the refused values.
    """
    from ludus.envs.ids import resolve_id

    if sources is not None:
        new = _keep_untyped(stored, new, sources)
    if resolve_id(stored.env.id) == new.env.id:  # keep the id of a version that no longer exists
        new = new.model_copy(update={"env": new.env.model_copy(update={"id": stored.env.id})})
    bad = [d for d in differences(stored, new) if not is_free(d[0]) and d[0] != "run.horizon"]
    if new.run.horizon not in (None, stored.run.horizon_steps):
        bad.append(("run.horizon", stored.run.horizon, new.run.horizon))
    if bad:
        raise _refused(bad, where)
    # Schedules keep their planned span when the run becomes longer.
    horizon = stored.run.horizon
    if horizon is None and new.run.steps != stored.run.steps:
        horizon = stored.run.steps
    kept = {"horizon": horizon, "imports": new.run.imports or stored.run.imports}
    return new.model_copy(update={"run": new.run.model_copy(update=kept)})


def _refused(bad: Sequence[Difference], where: str) -> LudusError:
    width = max(len(key) for key, _, _ in bad)
    lines = [f"    {key:<{width}}  {old!r} -> {new!r}" for key, old, new in bad]
    return LudusError(
        "E307",
        "\n".join([f"{len(bad)} setting(s) differ from the run's own", *lines]),
        where=where,
        why="it would no longer be the run whose weights and schedules are in the checkpoint",
        fix="leave them as they were;  ludus train ... --fresh  begins anew and keeps the old run "
        "as RUN.1;  --run OTHER  is a new run;  --init-from RUN  starts from its weights",
    )


def _keep_untyped(stored: Config, new: Config, sources: Mapping[str, str]) -> Config:
    update: dict[str, Any] = {}
    for section in SECTIONS:
        old, now = getattr(stored, section), getattr(new, section)
        keys = {name: f"{section}.{name}" for name in type(old).model_fields}
        same = {
            name: getattr(old, name)
            for name, key in keys.items()
            if (is_free(key) or key in _LATER)
            and sources.get(key, "").partition(" ")[0] in ("default", "preset", "variant")
        }
        update[section] = now.model_copy(update=same)
    return new.model_copy(update=update)
