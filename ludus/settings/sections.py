"""The sections `run`, `actor`, `log` and `eval` of a run's settings, and the table of fleets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from ludus.contract import Frozen
from ludus.units import Count, Seconds


def _switch(value: Any) -> Any:
    """Convert booleans to on and off, which YAML reads as booleans."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


Switch = Annotated[Literal["auto", "on", "off"], BeforeValidator(_switch)]
Gpu = Literal["cuda:0", "cuda:1", "cuda:2", "cuda:3", "cuda:4", "cuda:5", "cuda:6", "cuda:7"]
Device = Literal["auto", "cpu", "cuda", Gpu]


@dataclass(frozen=True)
class Capabilities:
    """Properties of a kind of fleet, available in `FLEETS` before a fleet is built."""

    own_processes: bool = False  # every actor is a process
    sends_chunks: bool = False  # actors send rows to the learner, from another process
    actors_learn: bool = False  # every actor updates the shared weights
    actor_bytes: int = 0  # memory of one actor with a small network, measured
    parallel: int = 1  # actors that collect at the same time
    on_cluster: bool = False  # actors may be on other machines
    waits: bool = False  # free actors always wait for the learner: no chunk is dropped


FLEETS: Mapping[str, Capabilities] = {
    "inline": Capabilities(),
    "processes": Capabilities(own_processes=True, sends_chunks=True, actor_bytes=160_000_000),
    "ray": Capabilities(
        own_processes=True, sends_chunks=True, actor_bytes=220_000_000, on_cluster=True, waits=True
    ),
    # Workers share the modules that they import.
    "hogwild": Capabilities(own_processes=True, actors_learn=True, actor_bytes=30_000_000),
}


class RunConfig(Frozen):
    """Length, seed, devices and checkpoints of a run. Durations are agent steps."""

    steps: Count = Field(default=100_000, ge=1)
    horizon: Count | None = Field(default=None, ge=1)  # steps schedules span; None: `steps`
    seed: int = Field(default=1, ge=0, lt=2**31)
    checkpoint_every: Count | None = Field(default=None, ge=1)  # None: see checkpoint_steps
    checkpoint_time: Annotated[  # longest time between checkpoints; off: only by steps
        Literal["off"] | Annotated[Seconds, Field(gt=0)], BeforeValidator(_switch)
    ] = 3600.0
    keep: int = Field(default=3, ge=1)  # periodic checkpoints kept, in addition to last and best
    exact: Switch = "auto"  # checkpoints are barriers, so that a resumed run is equal bit for bit
    fleet: Literal["inline", "processes", "ray", "hogwild"] = "inline"  # where actors run
    actors: int = Field(default=1, ge=1, le=1024)  # each has env.num environments
    learners: int = Field(
        default=1, ge=1, le=64
    )  # processes that learn together, with equal weights
    # what each learner sends of its gradient: all, packed without loss, bf16, or its largest parts
    compress: Annotated[Literal["off", "zlib", "bf16", "topk"], BeforeValidator(_switch)] = "off"
    topk: float = Field(default=0.01, gt=0, le=1)  # share of the gradient that compress=topk sends
    shared_statistics: bool = True  # hogwild: one optimizer state for all actors, not one each
    threads: Literal["auto"] | Annotated[int, Field(ge=1, le=4096)] = "auto"  # of torch; auto: 1
    device: Device = "auto"  # cuda:1 is the second GPU
    precision: Literal["auto", "fp32", "bf16"] = "auto"  # auto: bf16 for images where it pays
    capture: Switch = "auto"  # act and learn as CUDA graphs; auto: on a GPU
    compile: bool = False  # torch.compile for residual torsos on a GPU; takes a minute at start
    overlap: Switch = "auto"  # learn while collecting, one iteration late; auto: replay on a GPU
    replay_on: Literal["auto", "device", "host"] = "auto"  # where a GPU run keeps its rows
    replays: int = Field(default=0, ge=0, le=64)  # replay roles; 0: with the learner
    # samples that replay roles draw ahead of the learner; auto: 2, and 0 in lockstep
    prefetch: Literal["auto"] | Annotated[int, Field(ge=0, le=64)] = "auto"
    save_replay: Switch = "auto"  # auto: when it is under 2 GB
    time: Seconds | None = Field(default=None, gt=0)  # stop after this time, with a checkpoint
    # seconds after a signal for a step or reset to return, then again to be interrupted
    grace: Seconds = Field(default=10.0, gt=0)
    nan_limit: int = Field(default=3, ge=1)  # bad updates in a row that end the run
    imports: tuple[str, ...] = ()  # modules that register your own parts (--import)

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the configured fleet."""
        return FLEETS[self.fleet]

    @property
    def horizon_steps(self) -> int:
        """The steps that schedules are planned for; `steps=+N` on resume leaves them alone."""
        return self.horizon if self.horizon is not None else self.steps

    @property
    def checkpoint_steps(self) -> int:
        """Steps between checkpoints: a tenth of the horizon, from 1,000 to 1M."""
        return self.checkpoint_every or min(max(self.horizon_steps // 10, 1_000), 1_000_000)

    @property
    def checkpoint_seconds(self) -> float | None:
        return None if self.checkpoint_time == "off" else self.checkpoint_time

    @property
    def thread_count(self) -> int:
        return 1 if self.threads == "auto" else self.threads


class ActorConfig(Frozen):
    """Actors in processes of their own: how chunks and weights travel, and when one is dead."""

    lockstep: Switch = "auto"  # one chunk of each per iteration; auto: where run.exact=on
    device: Device = "auto"  # auto: cpu; cuda: spread over all GPUs; cuda:1: all on that one
    rows: int = Field(default=0, ge=0)  # of each slot in a chunk; 0: the plan's, or some more
    buffers: int = Field(default=3, ge=1)  # chunks per actor that may wait for the learner
    overflow: Literal["wait", "latest", "oldest", "alternate"] = "wait"  # policy when full
    publish_every: int = Field(default=1, ge=1)  # updates between new weights
    pull_every: Count = Field(default=0, ge=0)  # steps of an actor between pulls; 0: chunk
    hang_seconds: Seconds = Field(default=20.0, gt=0)  # replace an actor without a heartbeat
    restarts: int = Field(default=20, ge=0)  # replaced actors that end the run ...
    restart_minutes: float = Field(default=10.0, gt=0)  # ... within this time


# The resources of the nodes that `ludus actor`, `ludus replay` and `ludus evaluator` start.
ACTOR_ROLE, REPLAY_ROLE, EVALUATOR_ROLE = "ludus-actor", "ludus-replay", "ludus-evaluator"


class RayConfig(Frozen):
    """Actors on Ray (run.fleet=ray): the cluster, and what each actor reserves there."""

    address: str = ""  # HOST:PORT of a running cluster; empty: Ludus starts Ray on this machine
    key_file: str = ""  # holds the token of that cluster; empty: where Ray looks for it
    insecure: bool = False  # join a cluster that asks for no token (--insecure)
    actor_cpus: float = Field(default=1.0, ge=0, le=1024)  # cores that an actor reserves
    actor_gpus: float = Field(default=0.0, ge=0, le=8)  # GPUs that an actor reserves
    resource: str = Field(default="", max_length=64)  # a resource of the nodes that take actors
    # A resource of the nodes that take replay roles; auto: ludus-replay if a node offers it
    replay_resource: str = Field(default="auto", max_length=64)
    # Actors outlive a killed learner for so long, and the next learner of the run finds them.
    keep: Annotated[Seconds, Field(ge=0)] = 0.0


def _table(value: Any) -> Any:
    """Convert true to a table of defaults, and false to none."""
    return ({} if value else None) if isinstance(value, bool) else value


class WandbConfig(Frozen):
    """Weights & Biases, if its package is installed."""

    project: str = Field(default="ludus", min_length=1)
    mode: Literal["online", "offline"] = "online"  # offline: files, for `wandb sync`
    entity: str | None = None
    group: str | None = None


class TrackioConfig(Frozen):
    """Trackio, if its package is installed."""

    project: str = Field(default="ludus", min_length=1)
    space: str | None = None  # a Hugging Face Space; None: on this machine
    group: str | None = None  # None: log.tag


class LogConfig(Frozen):
    """Logs, metrics and reports."""

    tensorboard: bool = True
    tag: str = Field(default="", max_length=64)  # your own label, shown with the run
    csv: str = ""  # a folder for episodes and evaluations; empty: in the run's own
    wandb: Annotated[WandbConfig | None, BeforeValidator(_table)] = None
    trackio: Annotated[TrackioConfig | None, BeforeValidator(_table)] = None
    every: Count = Field(default=1_000, ge=1)  # steps between lines of metrics.jsonl
    terminal: Annotated[Literal["auto", "plain", "off"], BeforeValidator(_switch)] = "auto"
    seconds: Seconds = Field(default=30.0, gt=0)  # between plain lines, when not a terminal
    screenshots: int = Field(default=0, ge=0)  # episodes between pictures of a last frame; 0: none
    report: bool = True  # report.html, about once a minute and at the end


class EvalConfig(Frozen):
    """Evaluation: greedy by default, on its own environments and seeds."""

    every: Count | None = Field(default=None, ge=1)  # steps; None: not during training
    episodes: int = Field(default=0, ge=0)  # per evaluation, and at the end; 0: see defaults.py
    epsilon: float = Field(default=0.0, ge=0, le=1)  # random actions while evaluating
    live: bool = False  # a process that follows new weights and evaluates them all the time
    device: Device = "auto"  # of that process; auto: cpu
    best_window: int = Field(default=100, ge=1)  # real episodes whose mean decides `best`
