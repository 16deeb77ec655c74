"""The connection to Ray: a node that Ludus starts on this machine, or a running cluster.

A local Ray listens on the loopback address only, asks for a token that only this process and its
children know, and ends with this process (node.py).
"""

from __future__ import annotations

import math
import os
import secrets
import select
import subprocess
import time
from dataclasses import dataclass, field
from multiprocessing import util
from pathlib import Path
from typing import Any

import ray
from ray import _raylet
from ray._private import ray_constants
from ray._private import worker as ray_worker

from ludus.errors import LudusError
from ludus.fleets.ray.checks import (
    LOOPBACK,
    TOKEN,
    TOKEN_PATH,
    check_cluster,
    joining_values,
    without_token,
)  # fmt: skip
from ludus.fleets.ray.node import ADDRESS
from ludus.process.fork_server import mark_temporary
from ludus.process.signals import handlers_kept
from ludus.process.supervisor import end_detached, start_detached
from ludus.settings.sections import RayConfig

START_SECONDS = 60.0
CLOSE_SECONDS = 10.0
LOCAL = {
    LOOPBACK: "0",
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # Ray's default is 15: anything else would run before the actors
}


@dataclass
class Cluster:
    """A connection, and the node if this process started one."""

    node: subprocess.Popen[bytes] | None = None
    mine: bool = False  # this process made the connection
    environ: dict[str, str | None] = field(default_factory=dict)  # values to restore
    address: str = ""  # as in the settings
    users: int = 1  # the last one closes it

    def close(self) -> None:
        self.users -= 1
        if self.users > 0:
            return
        if _shared.get(self.address) is self:
            del _shared[self.address]
        if self.mine:
            ray.shutdown()
        if self.node is not None:
            end_detached(self.node, CLOSE_SECONDS)
            self.node = None
        _restore(self.environ)
        self.environ, self.mine = {}, False


_shared: dict[str, Cluster] = {}  # the connection that `connect` has made, by its address


def connect(cfg: RayConfig, actors: int) -> Cluster:
    """Use the connection of this process if there is one. Otherwise join the cluster at
    `ray.address`, or start Ray on this machine with room for `actors` actors."""
    known = _shared.get(cfg.address)
    if known is not None and ray.is_initialized():
        known.users += 1
        return known
    if ray.is_initialized():
        _check_connection(cfg)
        return Cluster()
    made = join(cfg) if cfg.address else start(cfg, actors)
    made.address, _shared[cfg.address] = cfg.address, made
    return made


def _check_connection(cfg: RayConfig) -> None:
    """Check a connection that the user's script made."""
    there, native = ray.get_runtime_context().gcs_address, _native()
    if cfg.address and cfg.address != there:
        raise LudusError(
            "E104",
            f"ray.address={cfg.address}, but this process is connected to Ray at {there}",
            where="ray.address",
            fix="leave the address out, or call  ray.shutdown()  before",
        )
    if native.get_authentication_mode() != native.AuthenticationMode.TOKEN and not cfg.insecure:
        raise without_token(there)


def start(cfg: RayConfig, actors: int) -> Cluster:
    """Start Ray on this machine, and connect."""
    folder = private_folder()
    cluster = Cluster(mine=True, environ=_set({**LOCAL, TOKEN_PATH: str(local_token(folder))}))
    try:
        cpus = max(1, math.ceil(actors * cfg.actor_cpus))
        words = [str(folder / "ray"), str(cpus), cfg.resource and f"{cfg.resource}={actors}"]
        cluster.node = start_detached("ludus.fleets.ray.node", *words, out=subprocess.PIPE)
        _init(_address(cluster.node))
    except BaseException:
        cluster.close()
        raise
    return cluster


def join(cfg: RayConfig) -> Cluster:
    """Join a running cluster, after checks in other processes: where Ray cannot connect, it tries
    for minutes or ends the process."""
    values = joining_values(cfg)
    check_cluster(cfg, values)
    cluster = Cluster(mine=True, environ=_set(values))
    try:
        _init(cfg.address)
    except BaseException:
        cluster.close()
        raise
    return cluster


def _init(address: str) -> None:
    # Ray would print the end of every actor into the terminal; the fleet reports it.
    printing: Any = ray_worker
    printing._worker_logs_enabled = False
    with handlers_kept():  # Ray aborts on SIGTERM
        ray.init(address=address, log_to_driver=False, configure_logging=False, namespace="ludus")


def private_folder() -> Path:
    """The temporary folder of this process. Only this user can read it, and it is removed at exit,
    or by the next `ludus runs clean` after a kill."""
    mark_temporary()
    return Path(util.get_temp_dir())


def local_token(folder: Path) -> Path:
    """The file with the token of Ray on this machine; the same as long as this process lives,
    because Ray reads it once."""
    path = folder / "ray-token"
    if not path.exists():
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(32))
    return path


def _address(node: subprocess.Popen[bytes]) -> str:
    """Wait for the address that the node prints."""
    assert node.stdout is not None
    deadline, said = time.monotonic() + START_SECONDS, b""
    while time.monotonic() < deadline:
        if select.select([node.stdout], [], [], 0.2)[0]:
            part = os.read(node.stdout.fileno(), 1 << 16)
            said += part
            lines = said.decode(errors="replace").splitlines()
            found = [line for line in lines if line.startswith(ADDRESS)]
            if found and said.endswith(b"\n"):
                return found[0].removeprefix(ADDRESS)
            if not part:
                break
    last = said.decode(errors="replace").strip().splitlines()[-1:]
    raise LudusError(
        "E502",
        f"Ray did not start on this machine: {last[0] if last else 'it printed nothing'}",
        why=f"it needs some GB of memory, /dev/shm, and up to {START_SECONDS:g} s",
        fix="look at  ludus doctor , or use  run.fleet=processes",
    )


def _set(values: dict[str, str]) -> dict[str, str | None]:
    """Set variables of this process; return what they were. A token in the variable would win over
    that in the file."""
    old = {name: os.environ.get(name) for name in (*values, TOKEN)}
    os.environ.pop(TOKEN, None)
    os.environ.update(values)
    _read_again()
    return old


def _read_again() -> None:
    """Ray has read the variables when it was imported, perhaps by the user's script."""
    ray_constants.ENABLE_RAY_CLUSTER = os.environ.get(LOOPBACK, "1") != "0"
    _native().Config.initialize("")
    _native().AuthenticationTokenLoader.instance().reset_cache()


def _native() -> Any:
    return _raylet


def _restore(values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if values:
        _read_again()
