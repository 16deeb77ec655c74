"""`ludus head`, `actor`, `replay`, `evaluator` and `learner`: the roles of a run on machines."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated

import typer

from ludus.cli.output import say
from ludus.cli.training import Json, Quiet, RunsDir, report_interrupt, train
from ludus.errors import LudusError

PORT = 6379
KEEP = "10m"  # how long actors of `ludus learner` wait for the next one
Key = Annotated[
    Path | None,
    typer.Option("--key-file", metavar="FILE", help="Holds the token of the cluster."),
]
Join = Annotated[str, typer.Option("--join", metavar="HOST:PORT", help="The head of the cluster.")]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Join a cluster that asks for no token.")
]
Host = Annotated[
    str, typer.Option("--host", metavar="ADDRESS", help="The address of this machine for others.")
]


def head(
    key_file: Key = None,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1024, max=65535, help="Port of the head.")] = PORT,
    actors: Annotated[int, typer.Option(min=0, help="Actors that may run on this machine.")] = 0,
) -> None:
    """Start the head of a cluster, where learner and actors meet, until it is interrupted."""
    from ludus.fleets.ray import load_fleet

    load_fleet()  # is Ray installed?
    from ludus.fleets.ray import roles

    file = key_file or Path.home() / ".ludus" / "cluster-key"
    _check_free(host, port)
    with report_interrupt("the head has ended, and with it the cluster"):
        node = roles.head(host, port, file, actors)
        ready = head_message(f"{host}:{port}", file, actors, alone=host in roles.LOOPBACKS)
        roles.Keeper(node, lambda: None, say, ready).run()


def head_message(address: str, file: Path, actors: int, *, alone: bool) -> str:
    """What to type next. `alone`: no other machine can join."""
    learn = f"ludus learner --join {address} --key-file FILE ALGO ENV"
    lines = [
        "on each machine with actors, with a copy of that file:",
        f"  ludus actor --join {address} --key-file FILE --actors N",
        f"here, or on one of those machines:  {learn}",
    ]
    if alone:
        lines = ["other machines cannot join:  --host ADDRESS  lets them", f"here:  {learn}"]
        if not actors:
            lines.insert(0, "it has no room for actors:  --actors N")
    return f"head of a cluster at {address}; its token is in {file}\n" + "\n".join(
        f"  {line}" for line in lines
    )


def actor(
    join: Join,
    key_file: Key = None,
    actors: Annotated[
        int, typer.Option(min=0, help="Actors that may run on this machine; 0: one per core.")
    ] = 0,
    gpus: Annotated[int, typer.Option(min=0, help="GPUs that actors may reserve.")] = 0,
    host: Host = "",
    insecure: Insecure = False,
) -> None:
    """Offer this machine to a cluster for actors, until it is interrupted."""
    from ludus.process.limits import available_cores
    from ludus.settings.sections import ACTOR_ROLE

    number = actors or available_cores()
    many = "1 actor" if number == 1 else f"{number} actors"
    _offer(ACTOR_ROLE, number, many, join, key_file, gpus, host, insecure)


def replay(
    join: Join,
    key_file: Key = None,
    roles: Annotated[
        int, typer.Option(min=1, help="Replay roles that may run on this machine.")
    ] = 1,
    host: Host = "",
    insecure: Insecure = False,
) -> None:
    """Offer this machine to a cluster for replay roles, until it is interrupted."""
    from ludus.settings.sections import REPLAY_ROLE

    what = "1 replay role" if roles == 1 else f"{roles} replay roles"
    _offer(REPLAY_ROLE, roles, what, join, key_file, 0, host, insecure)


def evaluator(
    join: Join,
    key_file: Key = None,
    gpus: Annotated[int, typer.Option(min=0, help="1 for runs with eval.device=cuda.")] = 0,
    host: Host = "",
    insecure: Insecure = False,
) -> None:
    """Offer this machine to a cluster for the live evaluator of a run (eval.live), until it is
    interrupted."""
    from ludus.settings.sections import EVALUATOR_ROLE

    _offer(EVALUATOR_ROLE, 1, "the live evaluator", join, key_file, gpus, host, insecure)


def _offer(
    role: str,
    number: int,
    shown: str,
    join: str,
    key_file: Path | None,
    gpus: int,
    host: str,
    insecure: bool,
) -> None:
    """Join a cluster with a node for `number` processes of one role."""
    from ludus.fleets.ray import load_fleet

    load_fleet()
    from ludus.fleets.ray import roles
    from ludus.settings.sections import RayConfig

    cfg = RayConfig(address=join, key_file=str(key_file or ""), insecure=insecure)
    with report_interrupt("this machine has left the cluster"):
        node, check = roles.joining(cfg, number, host, gpus, role)
        roles.Keeper(node, check, say, f"joined {join} with room for {shown}").run()


def _check_free(host: str, port: int) -> None:
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        raise LudusError(
            "E502",
            f"no head can listen at {host}:{port}: {error.strerror or error}",
            where="--host, --port",
            why="another program uses the port, or the address is not of this machine",
            fix="another  --port , or an address that  ip addr  lists",
        ) from None


def learner(
    join: Join,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="ALGO ENV KEY=VALUE", help="As for ludus train."),
    ] = None,
    key_file: Key = None,
    insecure: Insecure = False,
    run: Annotated[
        str | None, typer.Option(help="The run's name; the same command again resumes it.")
    ] = None,
    runs_dir: RunsDir = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> int:
    """Train on a cluster. Actors outlive a killed learner, and its next start finds them."""
    from ludus.settings.sections import ACTOR_ROLE

    given = [word.partition("=")[0] for word in words or []]
    wanted = {
        "run.fleet": "ray",
        "ray.address": join,
        "ray.key_file": str(key_file or ""),
        "ray.insecure": str(insecure).lower(),
        "ray.resource": ACTOR_ROLE,
        "ray.keep": KEEP,
    }
    more = [
        f"{name}={value}"
        for name, value in wanted.items()
        if value and name not in given and name.removeprefix("run.") not in given
    ]
    return train([*(words or []), *more], run=run, runs_dir=runs_dir, quiet=quiet, as_json=as_json)
