"""Nodes of a cluster, each for one role: the head, where all meet, and nodes with room for actors,
replay roles or a live evaluator.

A node runs as long as its command. One that a broken network cut off for too long is lost to the
cluster; the command then starts another in its place.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ludus.errors import LudusError
from ludus.fleets.ray.checks import (
    LOOPBACK,
    TOKEN_PATH,
    check_address,
    check_cluster,
    joining_values,
    private_file,
)  # fmt: skip
from ludus.fleets.ray.cluster import START_SECONDS, private_folder
from ludus.fleets.ray.role_node import READY
from ludus.process.supervisor import end_detached, start_detached
from ludus.settings.sections import ACTOR_ROLE, RayConfig

LOOPBACKS = ("localhost", "127.0.0.1", "::1")
CLOSE_SECONDS = 10.0
SHORTEST_REST, LONGEST_REST = 1.0, 30.0  # seconds between attempts to join again
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}


@dataclass
class RoleNode:
    """One node: `words` of `ray start`, and variables of its environment."""

    words: list[str]
    environ: dict[str, str]
    process: subprocess.Popen[bytes] | None = None
    said: bytes = b""  # the end of what it printed

    def start(self, resting: Callable[[float], None] = time.sleep) -> bool:
        """Start it; whether it runs. `resting` may raise to give up."""
        self.close()
        self.said = b""
        self.process = start_detached(
            "ludus.fleets.ray.role_node", *self.words, out=subprocess.PIPE, environ=self.environ
        )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.reads():
            if READY.encode() in self.said:
                return True
            resting(0.2)
        return False

    def reads(self) -> bool:
        """Read what it has printed; False once it has ended."""
        assert self.process is not None and self.process.stdout is not None
        out = self.process.stdout.fileno()
        while select.select([out], [], [], 0)[0]:
            part = os.read(out, 1 << 16)
            if not part:
                return False
            self.said = (self.said + part)[-8192:]
        return True

    @property
    def reason(self) -> str:
        """The last line that it printed."""
        lines = self.said.decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else "it printed nothing"

    def close(self) -> None:
        if self.process is None:
            return
        end_detached(self.process, CLOSE_SECONDS)
        self.process = None


@dataclass
class Keeper:
    """Keeps a node running until `resting` raises."""

    node: RoleNode
    check: Callable[[], None]  # raises while there is nothing to join
    say: Callable[[str], None]
    ready: str  # what to say when the node runs for the first time
    resting: Callable[[float], None] = time.sleep
    patience: float = 600.0  # seconds without a cluster before it gives up

    def run(self) -> None:
        """Start the node again whenever it ends. Raise an error if the first start fails, or if
        there is no cluster for longer than `patience`."""
        try:
            self._start()
            self.say(self.ready)
            while True:
                if self.node.reads():
                    self.resting(0.5)
                    continue
                self.say(f"the node has ended ({self.node.reason}); it joins again")
                self._start_again()
        finally:
            self.node.close()

    def _start(self) -> None:
        if not self.node.start(self.resting):
            raise LudusError(
                "E502",
                f"the node did not start: {self.node.reason}",
                why="its port is in use, or it lacks memory or /dev/shm",
                fix="look at  ludus doctor , or choose another  --port",
            )

    def _start_again(self) -> None:
        rest, deadline = SHORTEST_REST, time.monotonic() + self.patience
        while True:
            try:
                self.check()
                self._start()
            except LudusError:
                if time.monotonic() > deadline:
                    raise
                self.resting(rest)
                rest = min(2 * rest, LONGEST_REST)
            else:
                self.say("it has joined again, as a new node")
                return


def head(host: str, port: int, key_file: Path, actors: int = 0) -> RoleNode:
    """The node where a cluster meets, with room for `actors` actors."""
    words = [
        "--head", f"--node-ip-address={host}", f"--port={port}", "--include-dashboard=false",
        *_room(actors, 0), *_common(),
    ]  # fmt: skip
    return RoleNode(words, _with_token(str(new_key(key_file)), host))


def joining(
    cfg: RayConfig, number: int, host: str = "", gpus: int = 0, role: str = ACTOR_ROLE
) -> tuple[RoleNode, Callable[[], None]]:
    """A node with room for so many actors, or processes of another role, and the check of what it
    joins."""
    values: dict[str, str] = {}

    def check() -> None:
        check_address(cfg.address)
        check_cluster(cfg, values)

    values |= joining_values(cfg)
    if LOOPBACK in values:
        raise LudusError(
            "E502",
            f"the head at {cfg.address} can be joined by no other node",
            where="--join",
            why="it listens on the loopback address only",
            fix="ludus head --actors N  runs actors there;  ludus head --host ADDRESS  "
            "lets other machines join",
        )
    check_cluster(cfg, values)
    words = [f"--address={cfg.address}", *_room(number, gpus, role), *_common()]
    if host:
        words.append(f"--node-ip-address={host}")
    return RoleNode(words, {**QUIET, **values}), check


def _room(number: int, gpus: int, role: str = ACTOR_ROLE) -> list[str]:
    offered = json.dumps({role: number} if number else {})
    cpus = number if role == ACTOR_ROLE else 0  # without cores, a node gets nothing but its role
    return [f"--num-cpus={cpus}", f"--num-gpus={gpus}", f"--resources={offered}"]


def _common() -> list[str]:
    return [f"--temp-dir={private_folder() / 'ray'}", "--disable-usage-stats"]


def _with_token(path: str, host: str) -> dict[str, str]:
    values = {**QUIET, "RAY_AUTH_MODE": "token", TOKEN_PATH: path}
    if host in LOOPBACKS:
        values[LOOPBACK] = "0"
    return values


def new_key(file: Path) -> Path:
    """A file with a token that only this user can read; made if it is not there."""
    file = file.expanduser().absolute()
    try:
        if file.exists():
            private_file(file)
            return file
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except OSError as error:
        raise LudusError(
            "E502",
            f"the token cannot be written: {file}: {error.strerror}",
            where="--key-file",
            fix="--key-file FILE  in a folder of yours",
        ) from None
    with os.fdopen(handle, "w", encoding="ascii") as out:
        out.write(secrets.token_hex(32))
    return file
