"""A trained policy without its run: load it, act in a single environment, evaluate it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from ludus import registry, seeding
from ludus.collect.policy_runner import FrameStacker
from ludus.contract import Algorithm, overrides
from ludus.envs.action_check import MaskReader
from ludus.envs.adapter import RewardShaper
from ludus.envs.backends.failures import close_env
from ludus.envs.blueprint import make_codec
from ludus.envs.config import EnvConfig
from ludus.envs.make import make_one, probe_spec
from ludus.envs.spec import ActionCodec, ObsCodec
from ludus.errors import LudusError
from ludus.evals.evaluate import EvalResult, evaluate_policy
from ludus.evals.rules import Rules, make_rules
from ludus.nets.normalize import normalizer_of
from ludus.run.networks import normalizer_for
from ludus.run.state import RUNNING, check_env, check_fit, load_model, spec_json
from ludus.settings.resolve import Config, from_file
from ludus.settings.trust import NOTHING, Trust
from ludus.track.checkpoint.format import checkpoint_paths
from ludus.track.checkpoint.reader import Loaded, load, load_file
from ludus.types import Ctx, EnvSpec, Step, Tree, tree_map

WHERE = "agent.act()"


class Agent:
    """A policy and the environment it was trained for. Never learns."""

    def __init__(
        self, cfg: Config, algorithm: Algorithm, net: nn.ModuleDict, spec: EnvSpec
    ) -> None:
        self.cfg, self.algorithm, self.net, self.spec = cfg, algorithm, net, spec
        self.step, self.path = 0, Path()
        self.warnings: tuple[str, ...] = ()  # about the file it was loaded from
        env, _ = make_one(cfg.env)
        self._inputs = ActInputs(cfg.env, make_codec(cfg.env, env), spec)
        self._actions = ActionCodec(env.action_space)
        close_env(env, f"environment {cfg.env.id}")
        values = {name: torch.zeros(()) for name in (*algorithm.plan.schedules, "warming")}
        rng = seeding.generator(cfg.run.seed, "agent")
        self._ctx = Ctx(rng, spec, values, evaluating=True)
        self._rows = 0  # of the batch; 0 after a reset of all
        self._first = np.ones(0, bool)  # [rows]
        self._action = torch.zeros(0)  # [rows, ...] the previous one
        self._state: Any = ()
        self._follows = overrides(algorithm, "after_step")
        self._before: Step | None = None  # the previous step; kept only for `after_step`

    @cached_property
    def weights(self) -> str:
        """Twelve hex digits that change with any number in the network."""
        digest = hashlib.sha256()
        for name, value in sorted(self.net.state_dict().items()):
            digest.update(name.encode())
            digest.update(value.cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()[:12]

    def reset(self, rows: Any = None) -> None:
        """Begin a new episode: forget frames, recurrent state and the previous action. Of a batch,
        `rows` (numbers or bools) begin one and the others continue; without them all begin, and
        the next batch may have another length."""
        if rows is None:
            self._rows = 0
        elif self._rows:
            self._first[np.asarray(rows)] = True

    @torch.no_grad()
    def act(self, obs: Any, *, action_mask: Any = None, reward: Any = 0.0) -> Any:
        """The greedy action for one observation, as the environment's `step` takes it, or an array
        of actions for a batch. `action_mask`: of the same observation, if the agent was trained
        with masks. `reward`: of the previous action, if the algorithm uses it."""
        frames, batch = self._inputs.obs(obs)
        mask = self._inputs.masks(action_mask, batch)
        self._begin(batch or 1)
        seen = self._stacker.push(frames, self._first)
        normalizer = normalizer_of(self.net)
        if normalizer is not None:
            seen = normalizer.obs(seen)
        first, no = torch.from_numpy(self._first), torch.zeros(self._rows, dtype=torch.bool)
        paid = self._inputs.rewards(reward, self._rows)
        step = Step(seen, first, no, self._action, *paid, no, mask)
        self._first = np.zeros(self._rows, bool)
        if self._follows:
            self._follow(step)
        self._action, _, self._state = self.algorithm.act(self.net, step, self._state, self._ctx)
        actions = self._actions.decode(self._action.numpy())
        return actions[0] if batch is None else np.array(actions)

    def _follow(self, step: Step) -> None:
        """Call `after_step` for the previous action: its result comes with this observation."""
        if self._before is not None:
            _, self._state = self.algorithm.after_step(
                self.net, self._before, self._action, step, self._state, self._ctx
            )
        self._before = step

    def _begin(self, rows: int) -> None:
        """Allocate the state of `rows` episodes after a reset of all."""
        if self._rows and rows != self._rows:
            raise LudusError(
                "E203",
                f"act() got {rows} observations after {self._rows} observations",
                where=WHERE,
                why="each row of a batch is an episode of its own, with its own memory",
                fix="agent.reset()  before a batch of another length",
            )
        if self._rows:
            return
        self._rows, self._ctx.num_envs = rows, rows
        self._stacker = FrameStacker(self.spec.obs, rows)
        self._state, self._before = self.algorithm.begin(rows, self._ctx), None
        self._first = np.ones(rows, bool)
        self._action = torch.zeros((rows, *self.spec.action_shape), dtype=self.spec.action_dtype)

    def make_env(self, render: str | None = None) -> gym.Env[Any, Any]:
        """One ordinary gymnasium environment, wrapped as in training."""
        cfg, shown = self.cfg.env, render == "rgb_array"
        if render and not shown:
            cfg = cfg.model_copy(update={"args": {**cfg.args, "render_mode": render}})
        env, limit = make_one(cfg, shown=shown)
        return gym.wrappers.TimeLimit(env, limit) if limit is not None else env

    def evaluate(
        self,
        episodes: int = 100,
        *,
        seed: int | None = None,
        epsilon: float | None = None,
        sample: bool = False,
        protocol: str | None = None,
        settings: Sequence[str | tuple[str, object]] = (),
        render: str = "none",
        quiet: bool = True,
    ) -> EvalResult:
        """Play complete episodes. `protocol`: saber, machado, ... for Atari games, else the run's
        rules; `settings` of env override it. E104 for an `epsilon` the algorithm does not have.
        `render`: show none, one or all of the games, at their own speed. `quiet`: no progress."""
        rules = self.rules(protocol, settings, epsilon=epsilon, sample=sample)
        result = evaluate_policy(
            self.algorithm,
            self.net,
            rules.env,
            episodes=episodes,
            sample=sample,
            seed=self.eval_seed(seed),
            epsilon=rules.epsilon,
            render=render,
            num_envs=rules.num_envs,
            quiet=quiet,
        )
        facts = {"evaluation": rules.label, "label": rules.label, "changed": rules.modified}
        facts |= {**result.settings, "differs": rules.env.differences, "weights": self.weights}
        return replace(result, step=self.step, checkpoint=str(self.path), settings=facts)

    def rules(
        self,
        protocol: str | None = None,
        settings: Sequence[str | tuple[str, object]] = (),
        *,
        epsilon: float | None = None,
        sample: bool = False,
    ) -> Rules:
        """The rules that `evaluate` would use; E306 if the network does not fit."""
        rules = make_rules(
            self.cfg, self.algorithm, protocol=protocol, settings=settings, epsilon=epsilon,
            sample=sample,
        )  # fmt: skip
        if rules.env != self.cfg.env:
            self._check_fit(probe_spec(rules.env))
        return rules

    def eval_seed(self, seed: int | None = None) -> int:
        """The given seed, or one that training did not use."""
        return self.cfg.run.seed + 10_000 if seed is None else seed

    def _check_fit(self, spec: EnvSpec) -> None:
        then, now = spec_json(self.spec), spec_json(spec)
        changed = [f"{k}: {then[k]}, now {now[k]}" for k in ("obs", "action") if then[k] != now[k]]
        if changed:
            raise LudusError(
                "E306",
                f"the agent's network does not fit {spec.id} as it is to be played",
                where="; ".join(changed),
                why="a setting changes the observations or the actions",
                fix="leave that setting as in training",
            )


def load_agent(
    path: Path,
    checkpoint: str = "last",
    config: Config | None = None,
    trust: Trust = NOTHING,
) -> Agent:
    """Load from a run directory, a checkpoint or a model.safetensors. They hold the settings, and
    `trust` says which of their code may be used. `config` is for weights without settings.
    `checkpoint` chooses one of a run: E104 for others."""
    if checkpoint != "last":
        _check_several(path, checkpoint)
    saved = load_file(path) if path.is_file() else load(path, checkpoint, replay=False)
    cfg = config or _settings(saved, trust)
    algorithm = registry.make(cfg.algo)
    spec = replace(probe_spec(cfg.env), num_envs=_trained_envs(saved, cfg))
    check_env(saved.state, spec)
    _check_shapes(algorithm, spec, saved.tensors["model"])
    net = _build(algorithm, spec, saved.path)
    returns = saved.tensors["model"].get(RUNNING)
    normalizer = normalizer_for(cfg.env, spec, 1 if returns is None else returns.numel())
    if normalizer is not None:
        net["normalizer"] = normalizer
    load_model(net, saved.tensors["model"])
    net.eval()
    agent = Agent(cfg, algorithm, net, spec)
    agent.step, agent.path, agent.warnings = saved.step, saved.path, saved.warnings
    return agent


def _build(algorithm: Algorithm, spec: EnvSpec, path: Path) -> nn.ModuleDict:
    try:
        with torch.random.fork_rng(devices=[]):
            return algorithm.build(spec)
    except LudusError:
        raise
    except Exception as error:
        raise LudusError(
            "E306",
            f"the network of {path.name} cannot be built: {str(error)[:200]}",
            where=str(path),
            why="its settings describe a network that is impossible, or an error in your own code",
            fix="use the file as it was written",
        ) from error


def _check_shapes(algorithm: Algorithm, spec: EnvSpec, tensors: dict[str, Tensor]) -> None:
    """Check before allocating memory: settings in a file may ask for a network of any size."""
    try:
        with torch.device("meta"):
            net = algorithm.build(spec)
    except Exception:  # an algorithm that needs real numbers to build
        return
    check_fit(net, {k: v for k, v in tensors.items() if not k.startswith("normalizer.")})


def _check_several(path: Path, checkpoint: str) -> None:
    if path.is_file() or not ((path / "checkpoints").is_dir() or checkpoint_paths(path)):
        raise LudusError(
            "E104",
            f"checkpoint {checkpoint} of {path}, which is one agent",
            where="--checkpoint",
            why="only a run has several checkpoints to choose from",
            fix="leave it out, or name the run",
        )


def _settings(saved: Loaded, trust: Trust) -> Config:
    tree = saved.state.get("config")
    if not isinstance(tree, dict):
        raise LudusError(
            "E306",
            f"{saved.path.name} holds weights alone, not the settings of the agent",
            where=str(saved.path),
            why="it was not written by ludus, or by a version that kept them elsewhere",
            fix=f"ludus eval {saved.path} --config RUN/config.yaml   or name the run itself",
        )
    where = f"{saved.path}/state.json" if saved.path.is_dir() else str(saved.path)
    # Nothing here joins a cluster, so an agent may come from one that its settings name.
    return from_file({k: v for k, v in tree.items() if k != "ray"}, where, trust)


def _trained_envs(saved: Loaded, cfg: Config) -> int:
    """The environments of the training run, for nets that keep one thing for each. Older files
    have only the settings."""
    spec = saved.state.get("spec")
    found = spec.get("num_envs") if isinstance(spec, dict) else None
    return found if type(found) is int and found > 0 else cfg.total_envs


class ActInputs:
    """Converts the arguments of act(): one observation or a batch, masks, rewards. Arguments that
    do not fit are the caller's mistake, not the environment's."""

    def __init__(self, env: EnvConfig, codec: ObsCodec, spec: EnvSpec) -> None:
        self._env, self._codec, self._spec = env, codec, spec
        self._read_mask = MaskReader(spec.action) if spec.mask_width else None
        self._shaper, self._shaped = RewardShaper(env.model_copy(update={"num": 1})), 1

    def obs(self, obs: Any) -> tuple[Tree, int | None]:
        """Frames [n, ...] and their number; None for a single observation."""
        rows = self._codec.batch_size(obs)
        if rows == 0:
            raise _refuse("E203", "act() got an empty batch of observations")
        buffers = self._codec.buffers(rows or 1)
        try:
            for i in range(rows or 1):
                self._codec.write(obs if rows is None else _row(obs, i), buffers, i)
        except (LudusError, IndexError) as error:
            what = error.what if isinstance(error, LudusError) else "batches of different lengths"
            raise _refuse("E203", what) from None
        return tree_map(torch.from_numpy, self._codec.tree(buffers)), rows

    def masks(self, given: Any, rows: int | None) -> Tensor | None:
        """[n, W]; an agent that was trained with masks needs one."""
        if given is None and self._spec.has_action_mask:
            raise LudusError(
                "E204",
                "act() without action_mask, but the agent was trained with masks",
                where=WHERE,
                why="without one it would choose actions that the environment forbids",
                fix='agent.act(obs, action_mask=info["action_mask"])   or   '
                "action_mask=env.get_wrapper_attr('action_masks')()",
            )
        if given is None or self._read_mask is None:
            return None
        try:
            masks = [self._read_mask(mask) for mask in ([given] if rows is None else given)]
        except LudusError as error:
            raise LudusError(error.code, error.what, where=WHERE, fix=error.fix) from None
        if len(masks) != (rows or 1):
            raise _refuse("E202", f"{len(masks)} action masks for {rows} observations")
        return torch.from_numpy(np.stack(masks))

    def rewards(self, given: Any, rows: int) -> tuple[Tensor, Tensor]:
        """Rewards as the learner saw them, and the raw rewards, each [n]."""
        if rows != self._shaped:
            self._shaper = RewardShaper(self._env.model_copy(update={"num": rows}))
            self._shaped = rows
        raw = np.broadcast_to(np.asarray(given, np.float64), (rows,))
        seen = torch.from_numpy(self._shaper(raw, slice(0, rows)))
        return seen, torch.from_numpy(raw.astype(np.float32))


def _row(obs: Any, i: int) -> Any:
    if isinstance(obs, Mapping):
        return {name: _row(part, i) for name, part in obs.items()}
    return tuple(_row(part, i) for part in obs) if isinstance(obs, tuple) else obs[i]


def _refuse(code: str, what: str) -> LudusError:
    return LudusError(
        code,
        what,
        where=WHERE,
        why="act() takes one observation of the environment, or a batch with one leading dimension",
        fix="pass what  reset()  or  step()  of  agent.make_env()  returned",
    )
