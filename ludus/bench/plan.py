"""Turn a command into a matrix: resolve names, check every setting, leave out impossible pairs."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ludus import registry
from ludus.bench.matrix import Cell, Matrix, check_names
from ludus.bench.suites import Suite
from ludus.envs.atari.names import canonical
from ludus.envs.make import probe_spec
from ludus.errors import LudusError
from ludus.presets import Preset, presets_of
from ludus.process.limits import available_cores
from ludus.secret_masking import is_secret
from ludus.settings.keys import split_override
from ludus.settings.resolve import Config, Request, resolve
from ludus.track.run_dir.rundir import check_name, slug
from ludus.types import EnvSpec

NO_PRESET, UNABLE = "no tuned preset", "not for such environments"
MANY = 1_000  # seeds; more is a typing error


@dataclass(frozen=True)
class BenchRequest:
    """The arguments of `ludus bench`."""

    envs: tuple[str, ...]
    algos: tuple[str, ...]
    seeds: tuple[int, ...] = (1, 2, 3)
    settings: tuple[str, ...] = ()
    sweeps: tuple[str, ...] = ()  # key=value,value: each of them in turn, all combinations
    preset: str | None = None
    imports: tuple[str, ...] = ()
    suite: Suite | None = None
    untuned: bool = False  # also pairs without a preset, where a suite leaves them out


def parse_seeds(text: str) -> tuple[int, ...]:
    """`5` -> 1 to 5; `1,4,9` -> those."""
    try:
        numbers = tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        numbers = ()
    if "," not in text and len(numbers) == 1 and 1 <= numbers[0] <= MANY:
        return tuple(range(1, numbers[0] + 1))
    if "," in text and numbers and min(numbers) >= 0 and len(set(numbers)) == len(numbers):
        return numbers
    raise LudusError(
        "E103",
        f"--seeds {text}: how many, or which ones",
        where="--seeds",
        fix="--seeds 5  for 1 to 5, or  --seeds 1,2,7  (one alone:  --seeds 7,)",
    )


def parse_sweeps(texts: Sequence[str]) -> list[tuple[str, ...]]:
    """[lr=1e-3,1e-4; batch=32] -> (lr=1e-3, batch=32), (lr=1e-4, batch=32); none: one that is
    empty."""
    choices = []
    for text in texts:
        key, _, values = text.partition("=")
        found = [value.strip() for value in values.split(",")]
        if not key or not all(found):
            raise LudusError(
                "E103",
                f"--sweep {text}: a setting and its values",
                where="--sweep",
                fix="--sweep lr=1e-3,3e-4",
            )
        if is_secret(key):
            raise LudusError(
                "E104",
                f"--sweep {key}: a secret",
                where="--sweep",
                why="the values of a sweep are in the names of its runs",
                fix=f"{key}=...  as a setting of all runs",
            )
        choices.append([f"{key}={value}" for value in found])
    return list(itertools.product(*choices))


def plan_matrix(request: BenchRequest, folder: Path) -> tuple[Matrix, list[Config]]:
    """The cells, seed by seed, and the configurations of one seed."""
    for text in (*request.settings, *request.sweeps):
        _check_setting(text)
    variants = parse_sweeps(request.sweeps)
    settings = [*(request.suite.settings if request.suite else ()), *request.settings]
    matrix = Matrix(
        folder,
        request.suite.name if request.suite else None,
        settings,
        request.preset,
        list(request.imports),
    )
    configs: list[Config] = []
    first: list[tuple[str, str, tuple[str, ...]]] = []
    keys = (text.partition("=")[0] for text in (*request.settings, *request.sweeps))
    short_keys: ShortKeys = {key: None for key in keys if "." not in key}
    specs: dict[str, EnvSpec] = {}
    tuned = {name: presets_of(registry.find(name)) for name in request.algos}
    for env in request.envs:
        for name in request.algos:
            algo = registry.find(name).name
            why, found = _unfit(request, tuned[name], canonical(env)), []
            if not why:
                wanted = [Request(algo, env, [*settings, *v], [], request.preset) for v in variants]
                with _about(algo, env):
                    found = [resolve(one) for one in wanted]
                    why = cannot_train(found[0].config, specs)
            if why:
                env_id = found[0].config.env.id if found else canonical(env)
                matrix.left_out.append({"algo": algo, "env": env_id, "why": why})
                continue
            for swept, resolved in zip(variants, found, strict=True):
                check_short_keys(short_keys, algo, resolved.sources)
                configs.append(resolved.config)
                first.append((algo, configs[-1].env.id, swept))
    for seed in request.seeds:
        for algo, env, swept in first:
            name = check_name("-".join([*map(slug, (env, algo, *swept)), f"s{seed}"]))
            matrix.cells.append(Cell(algo, env, seed, name, list(swept)))
    check_names(matrix.cells)
    if not matrix.cells:
        raise _nothing_left(matrix)
    return matrix, configs


def _nothing_left(matrix: Matrix) -> LudusError:
    if any(row["why"] == NO_PRESET for row in matrix.left_out):
        return LudusError(
            "E107",
            "no algorithm that was asked for has a tuned preset for any of the environments",
            where=f"suite {matrix.suite}",
            fix="ludus list presets  shows them;  --untuned  goes without",
        )
    pairs = ", ".join(f"{row['algo']} on {row['env']}" for row in matrix.left_out)
    return LudusError(
        "E204",
        f"no algorithm that was asked for is for such environments: {pairs}",
        where="--algos, --envs",
        fix="ludus list algos  says what each is for",
    )


@contextmanager
def _about(algo: str, env: str) -> Iterator[None]:
    try:
        yield
    except LudusError as error:  # add the pair, which the error does not know
        where = f"{algo} on {env}" + (f", {error.where}" if error.where else "")
        raise LudusError(
            error.code, error.what, where=where, why=error.why, fix=error.fix,
            exit_code=error.exit_code,
        ) from error  # fmt: skip


def cannot_train(cfg: Config, specs: dict[str, EnvSpec]) -> str:
    """Why an algorithm cannot train on an environment; empty if it can. An environment that cannot
    be made is refused here, before a run starts. Atari games are known, and slow to load."""
    if cfg.env.atari is not None:
        return ""
    key = cfg.env.model_dump_json()  # presets may wrap one environment differently
    if key not in specs:
        specs[key] = probe_spec(cfg.env)
    try:
        registry.make(cfg.algo).build(replace(specs[key], num_envs=cfg.total_envs))
    except LudusError as error:
        if error.code != "E204":  # E204: kinds of actions or observations
            raise
        return UNABLE
    return ""


ShortKeys = dict[str, tuple[str, str] | None]  # short key -> an algorithm, its whole key


def check_short_keys(short_keys: ShortKeys, algo: str, sources: Mapping[str, str]) -> None:
    """Refuse a short key that means different settings for different algorithms of a matrix.
    `sources`: the source of each value, by dotted key."""
    typed = [key for key, source in sources.items() if source == "command line"]
    for short, known in short_keys.items():
        here = next((key for key in typed if key.endswith(f".{short}")), None)
        if here is None:
            continue
        if known is None:
            short_keys[short] = (algo, here)
        elif known[1] != here:
            raise LudusError(
                "E104",
                f"{short} is {known[1]} of {known[0]}, but {here} of {algo}",
                where="command line",
                fix=f"type the whole key, such as  {here}=...",
            )


def _check_setting(text: str) -> None:
    key, _ = split_override(text)
    what = {"run.seed": "--seeds 1,2,3", "seed": "--seeds 1,2,3", "algo": "--algos A,B",
            "algo.name": "--algos A,B", "env": "--envs X,Y", "env.id": "--envs X,Y"}  # fmt: skip
    if key in what:
        raise LudusError(
            "E104", f"{text}: a bench has one for each of its runs", where="command line",
            fix=what[key],
        )  # fmt: skip


def _unfit(request: BenchRequest, tuned: Sequence[Preset], env_id: str) -> str:
    """Why a suite of tuned presets leaves out a pair; empty if it does not."""
    if request.suite is None or not request.suite.tuned or request.untuned or request.preset:
        return ""
    return "" if any(preset.fits(env_id) for preset in tuned) else NO_PRESET


def auto_jobs(configs: Sequence[Config], cells: int) -> int:
    """One per core; but only one if a run uses a GPU, emulator threads or several processes."""
    wide = any(
        c.env.atari is not None
        or c.env.workers
        or c.run.capabilities.own_processes
        or c.run.device.startswith("cuda")
        for c in configs
    )
    return 1 if wide else max(1, min(cells, available_cores()))


def core_shares(jobs: int) -> list[str]:
    """For each job the cores it may use, as `0,1,2`; empty: all of them."""
    affinity = getattr(os, "sched_getaffinity", None)
    share = available_cores() // jobs
    if affinity is None or jobs == 1 or share < 1:
        return [""] * jobs
    cores = sorted(affinity(0))
    return [",".join(map(str, cores[i * share : (i + 1) * share])) for i in range(jobs)]


def device_shares(jobs: int) -> list[str]:
    """For each job the GPU it may see (CUDA_VISIBLE_DEVICES); empty: as it is."""
    import torch

    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    there = named or [str(i) for i in range(torch.cuda.device_count())]
    return [there[i % len(there)] for i in range(jobs)] if len(there) > 1 else [""] * jobs
