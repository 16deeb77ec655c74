"""Make environments from an EnvConfig: ids, aliases, constructors, wrappers, and the adapter."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from ludus.envs.adapter import Envs, split, undo_rollover
from ludus.envs.atari import names
from ludus.envs.atari.native import Native
from ludus.envs.atari.scalar import make_game, quiet_emulator
from ludus.envs.backends import cartpole
from ludus.envs.backends.failures import NotMadeError, close_env, persist
from ludus.envs.backends.serial import Backend, EnvArrays, Serial, allocate
from ludus.envs.backends.workers import Workers
from ludus.envs.blueprint import Blueprint
from ludus.envs.build_progress import Building
from ludus.envs.config import EnvConfig
from ludus.envs.ids import find_maker, resolve_id
from ludus.envs.mujoco import derived, need_mujoco, registered
from ludus.envs.render.screenshots import Camera
from ludus.envs.render.viewer import cannot_show, check_display, viewer_of
from ludus.envs.test_envs import PROBES
from ludus.envs.wrappers import wrap
from ludus.errors import LudusError, env_faults, install_extra, nearest
from ludus.process.watchdog import Call, Pulse
from ludus.secret_masking import masked, refuse_masked
from ludus.types import EnvSpec


def known_ids() -> list[str]:
    """Every id that can be made: test environments, Atari games, then other registered ids."""
    games = [names.ale_id(game) for game in names.GAMES] if names.emulator_installed() else []
    return [*PROBES, *games, *sorted(set(gym.registry) - set(games))]


def _unknown(id: str) -> LudusError:
    shared, game = names.needs_others(id), names.meant_game(id)
    close = "" if shared else nearest(id, [*known_ids(), *names.GAMES])
    if game is not None:
        close = f" (did you mean  {names.ale_id(game)} ?)"
    return LudusError(
        "E201",
        f"unknown environment  {id}{close}",
        why=names.SHARED if shared else "no package that is installed registers it",
        fix="ludus list envs   or name your own as  my_package.my_module:MyEnv",
    )


def _from_module(id: str, args: dict[str, Any], limit: int | None) -> gym.Env[Any, Any]:
    maker = find_maker(id)
    if maker is None:
        return _from_registry(id.partition(":")[2], args, limit)
    if derived(maker):
        need_mujoco(id)
    env = _construct(id, maker, args)
    if not isinstance(env, gym.Env):
        raise LudusError(
            "E201",
            f"{id} made a {type(env).__name__}, not a gymnasium.Env",
            fix="derive the class from gymnasium.Env",
        )
    if derived(type(env.unwrapped)):  # made by a function
        need_mujoco(id)
    return env


def _construct(id: str, maker: Callable[..., Any], args: dict[str, Any]) -> Any:
    try:
        return maker(**args)
    except LudusError:
        raise
    except gym.error.DependencyNotInstalled as error:
        hint = re.search(r"pip install [^`']+", str(error))
        raise LudusError(
            "E501",
            f"environment {id} needs a package that is not installed",
            why=str(error),
            fix=hint[0].strip() if hint else "install the package it names",
        ) from error
    except env_faults() as error:
        # A wrong argument fails again, so a TypeError is not retried.
        kind = LudusError if isinstance(error, TypeError) else NotMadeError
        raise kind(
            "E201",
            f"environment {id} cannot be made: {type(error).__name__}: {error}",
            where=f"env.args={masked(args)}" if args else "",
            why="its constructor failed" + (" with these arguments" if args else ""),
            fix="check  env.args  and the environment's constructor",
        ) from error


def _from_registry(id: str, args: dict[str, Any], limit: int | None) -> gym.Env[Any, Any]:
    if id not in gym.registry:
        raise _unknown(id)
    if registered(id):
        need_mujoco(id)
    # -1 removes gymnasium's own limit: the adapter counts agent steps outside all wrappers.
    options = {**args, "disable_env_checker": True}
    if limit is not None:
        options["max_episode_steps"] = -1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        env: gym.Env[Any, Any] = _construct(id, lambda **kw: gym.make(id, **kw), options)
    return env


def _need_emulator(id: str) -> None:
    if names.emulator_installed():
        quiet_emulator()  # which also registers its ids
    if id in gym.registry or names.emulator_installed():
        return
    raise LudusError(
        "E501",
        f"environment {id} needs ale-py, which is not installed",
        why="Atari is an extra: its emulator is under the GPL",
        fix=install_extra("atari"),
    )


def make_one(cfg: EnvConfig, *, shown: bool = False) -> tuple[gym.Env[Any, Any], int | None]:
    """One environment with its wrappers, and the step limit for the adapter.
    `shown`: with render mode rgb_array."""
    # A stored configuration does not contain secrets: refuse their masks.
    given = {f"env.args.{name}": value for name, value in cfg.args.items()}
    refuse_masked({**given, "env.wrappers": [wrapper.options for wrapper in cfg.wrappers]})
    limit = cfg.max_episode_steps
    env = _shown(cfg) if shown else _bare(cfg, cfg.args)
    for wrapper in cfg.wrappers:
        env = wrap(env, wrapper)
    # The adapter does the work of these outermost wrappers; this saves Python calls per step.
    while type(env) in (TimeLimit, OrderEnforcing, PassiveEnvChecker):
        if isinstance(env, TimeLimit):
            own = int(env._max_episode_steps)
            limit = own if limit is None else min(limit, own)
        assert isinstance(env, gym.Wrapper)
        env = env.env
    return env, limit


def _bare(cfg: EnvConfig, args: dict[str, Any]) -> gym.Env[Any, Any]:
    id, limit = resolve_id(cfg.id), cfg.max_episode_steps
    if names.looks_like_atari(id):
        _need_emulator(id)
    game = names.game_of(id)
    if game is not None and cfg.atari is not None:
        flags = cfg.atari
        made: gym.Env[Any, Any] = _construct(id, lambda **kw: make_game(game, flags, kw), args)
        return made
    if id in PROBES:
        made = _construct(id, PROBES[id], args)
        return made
    return (_from_module if ":" in id else _from_registry)(id, args, limit)


def _shown(cfg: EnvConfig) -> gym.Env[Any, Any]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # gymnasium warns of unknown modes; checked below
            env = _bare(cfg, {**cfg.args, "render_mode": "rgb_array"})
    except LudusError as error:
        if isinstance(error.__cause__, TypeError) or "render_mode" in error.what:
            _bare(cfg, cfg.args).close()  # raises if the mode is not the cause
            raise cannot_show(cfg) from error.__cause__
        raise
    if env.render_mode != "rgb_array" or "rgb_array" not in env.metadata.get("render_modes", []):
        env.close()
        raise cannot_show(cfg)
    return env


def probe_spec(cfg: EnvConfig, *, shown: bool = False, pulse: Pulse | None = None) -> EnvSpec:
    """The EnvSpec of a configuration; makes one environment and closes it.
    `shown`: also refuse an environment that env.render cannot show."""
    shown = shown and not cfg.unseen
    if shown:
        check_display()
    with _watched(cfg, pulse):
        return _probe(cfg, shown=shown).spec


def _probe(cfg: EnvConfig, *, shown: bool = False) -> Blueprint:
    env, blueprint = _first(cfg, shown)
    close_env(env, f"environment {cfg.id}")
    return blueprint


def _first(cfg: EnvConfig, shown: bool) -> tuple[gym.Env[Any, Any], Blueprint]:
    """An environment and its blueprint."""

    def made() -> tuple[gym.Env[Any, Any], Blueprint]:
        env, limit = make_one(cfg, shown=shown)
        try:
            return env, Blueprint(cfg, env, limit)
        except BaseException:
            with suppress(Exception):  # it already failed
                env.close()
            raise

    return persist(made, cfg.rebuilds)


@contextmanager
def _watched(
    cfg: EnvConfig, pulse: Pulse | None, made: Callable[[], int] | None = None
) -> Iterator[None]:
    """Report constructors to the watchdog. `made` returns how many are done; None: one environment
    is made in this process. Without a limit where all environments are made at once or in worker
    processes."""
    limit = None if made and (cfg.workers or cfg.native_atari) else cfg.timeout
    pulse = pulse or Pulse()
    what = f"the constructor or first reset() of environment {cfg.id}"
    pulse.enter(Call(lambda: what, limit, made or (lambda: 0)))
    try:
        yield
    finally:
        pulse.leave()


def make_envs(
    cfg: EnvConfig,
    *,
    seed: int,
    role: str = "env",
    first_env: int = 0,
    repair_scores: bool = False,
    reseed: bool = False,
    pictures: int = 0,
    camera: Camera | None = None,
    quiet: bool = True,
    pulse: Pulse | None = None,
) -> Envs:
    """All environments of a configuration behind one adapter. Call `reset` first.

    `repair_scores`: for evaluation, undo the rollover of Atari score counters.
    `camera`: saves pictures of final states.
    `pictures`: how many of the first environments can render (`Serial.picture`) without a window.
    `reseed`: each episode has its own seed (`Envs.episode_seed`), not only each environment.
    `quiet`: print no progress on standard error.
    `pulse`: reports calls to the watchdog.
    """
    if camera is not None:
        pictures = max(pictures, 0 if cfg.native_atari else 1)  # native Atari shows its frames
    made: list[Any] = []
    with _watched(cfg, pulse, lambda: len(made)):
        backend, blueprint = _backend(cfg, first_env, quiet, made, pictures)
    return Envs(
        cfg,
        blueprint.spec,
        backend,
        blueprint.codec,
        seed=seed,
        role=role,
        first_env=first_env,
        repair=undo_rollover if repair_scores and cfg.atari is not None else None,
        reseed=reseed,
        camera=camera,
        pulse=pulse,
    )


def check_screenshots(cfg: EnvConfig, pulse: Pulse | None = None) -> None:
    """Refuse log.screenshots for environments that cannot render."""
    if cfg.workers:
        raise LudusError(
            "E104",
            f"log.screenshots with env.workers={cfg.workers}",
            where="log.screenshots",
            why="the environments live in worker processes, which take no pictures",
            fix="env.workers=0   or   log.screenshots=0",
        )
    if not cfg.native_atari:
        with _watched(cfg, pulse):
            _probe(cfg, shown=True)


def _backend(
    cfg: EnvConfig, first_env: int, quiet: bool, made: list[Any], pictures: int
) -> tuple[Backend, Blueprint]:
    num, groups = cfg.num_envs, split(cfg.num_envs, cfg.group_count)
    progress = partial(Building, f"{num} environments of {cfg.id}", num, quiet=quiet)
    if not pictures:
        if not cfg.unseen:
            check_display()
        if cartpole.fits(resolve_id(cfg.id), cfg):
            blueprint = _probe(cfg)
            return cartpole.CartPole(allocate(blueprint.codec, num, 0), groups), blueprint
        if cfg.native_atari:
            blueprint, game = _probe(cfg), names.game_of(cfg.id)
            assert game is not None and cfg.atari is not None
            arrays = allocate(blueprint.codec, num, 0, lives=cfg.ends_at_life_loss)
            threads = None if cfg.threads == "auto" else cfg.threads
            return Native(game, cfg.atari, arrays, groups, threads, quiet), blueprint
        if cfg.workers:
            blueprint = _probe(cfg)
            with progress() as building:
                return Workers(cfg, blueprint, first_env, building), blueprint
    with progress() as building:
        return make_serial(cfg, first_env, num, groups, made, pictures=pictures, done=building.done)


def make_serial(
    cfg: EnvConfig,
    first_env: int,
    num: int,
    groups: Sequence[slice],
    envs: list[Any],
    *,
    arrays: EnvArrays | None = None,
    pictures: int = 0,
    done: Callable[[], None] = lambda: None,
) -> tuple[Serial, Blueprint]:
    """`num` environments, to be stepped in this process. Appends each to `envs`, then calls
    `done`. The first `pictures` of them can render without a window."""

    def shown(i: int) -> bool:
        return cfg.shows(first_env + i) or i < pictures

    env, blueprint = _first(cfg, shown(0))
    envs.append(env)
    done()
    for i in range(1, num):
        envs.append(persist(partial(make_one, cfg, shown=shown(i)), cfg.rebuilds)[0])
        done()
    if arrays is None:
        lives = cfg.ends_at_life_loss
        arrays = allocate(blueprint.codec, num, blueprint.mask_width, lives=lives)
    backend = Serial(
        envs,
        blueprint,
        arrays,
        groups=groups,
        first_env=first_env,
        viewer=viewer_of(cfg, envs, first_env),
        rebuild=(lambda i: make_one(cfg, shown=shown(i))[0]) if cfg.rebuilds else None,
    )
    return backend, blueprint
