"""Checks before and after joining a cluster of Ray: its address, token, openness and versions."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

from ludus import __version__
from ludus.errors import LudusError
from ludus.settings.sections import RayConfig

TOKEN, TOKEN_PATH = "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
# Ray calls its switch for the loopback address after the systems where it is the default.
LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
CONNECT_SECONDS, ANSWER_SECONDS = 4.0, 14.0
# Joins and leaves the cluster. Without these limits Ray tries for a minute.
PROBE = """
import os, sys
import ray
try:
    ray.init(address=sys.argv[1], log_to_driver=False, configure_logging=False)
    print("joined")
except BaseException as error:
    while error is not None:
        print(f"{type(error).__name__}: {error}")
        error = error.__cause__
sys.stdout.flush()
os._exit(0)
"""
LIMITS = {"RAY_NUM_REDIS_GET_RETRIES": "2", "RAY_gcs_server_request_timeout_seconds": "4"}


def check_address(address: str) -> str:
    """Return the host of HOST:PORT, after a connection to it."""
    host, sign, port = address.rpartition(":")
    if not sign or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise LudusError(
            "E103",
            f"ray.address={address!r} is not HOST:PORT",
            where="ray.address",
            fix="for example  ray.address=10.0.0.5:6379",
        )
    host = host.strip("[]")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except socket.gaierror:
        raise _refused(address, f"the host {host} is not known", "a typing mistake") from None
    except ConnectionRefusedError:
        why = "the head does not run there, or uses another port"
        raise _refused(address, "the connection was refused", why) from None
    except OSError as error:
        why = "the machine is off, or a firewall is in between"
        raise _refused(address, str(error.strerror or error), why) from None
    return host


def _refused(address: str, what: str, why: str) -> LudusError:
    return LudusError(
        "E502",
        f"no Ray cluster at {address}: {what}",
        where="ray.address",
        why=why,
        fix="start  ludus head  there, which prints its address",
    )


def token_of(cfg: RayConfig) -> str:
    """The token for the cluster, from ray.key_file or where Ray looks for it. Raise if there is
    none, unless `insecure`."""
    path = cfg.key_file or os.environ.get(TOKEN_PATH, "")
    if not cfg.key_file and os.environ.get(TOKEN, "").strip():
        return os.environ[TOKEN].strip()
    file = Path(path).expanduser() if path else Path.home() / ".ray" / "auth_token"
    try:
        private_file(file)
        secret = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        if cfg.insecure and not path:
            return ""
        reason = error.strerror if isinstance(error, OSError) else "it is not a text file"
        raise LudusError(
            "E502",
            f"no token for the cluster at {cfg.address}: {file}: {reason}",
            where="ray.key_file" if cfg.key_file else "ray.address",
            why="whoever reaches a cluster without a token can run programs on all its nodes",
            fix="ray.key_file=FILE  with the token of the head node;  --insecure  joins a cluster "
            "without one",
        ) from None
    return secret


def private_file(file: Path) -> None:
    """Refuse a token that other users of this machine can read."""
    found = file.stat()
    if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) & 0o077:
        raise LudusError(
            "E502",
            f"other users can read the token in {file}",
            where="ray.key_file",
            why="Ray itself writes the file so",
            fix=f"chmod 600 {file}",
        )


def joining_values(cfg: RayConfig) -> dict[str, str]:
    """Variables of the environment for processes that join the cluster at `cfg.address`."""
    values = {"RAY_USAGE_STATS_ENABLED": "0"}
    if check_address(cfg.address) in ("localhost", "127.0.0.1", "::1"):
        values[LOOPBACK] = "0"
    secret = token_of(cfg)
    values["RAY_AUTH_MODE"] = "token" if secret else "disabled"
    if secret:
        values[TOKEN] = secret
    return values


def check_cluster(cfg: RayConfig, values: dict[str, str]) -> None:
    """Join the cluster from another process, with the token and without. Raise an error that says
    why it cannot be joined, or that it asks for no token."""
    probes = {"with": _probe(cfg.address, values)}
    if not cfg.insecure:
        probes["without"] = _probe(cfg.address, {**values, "RAY_AUTH_MODE": "disabled"})
    deadline = time.monotonic() + ANSWER_SECONDS
    said = {name: _answer(probe, deadline) for name, probe in probes.items()}
    if "joined" not in said["with"].splitlines():
        raise _explain(cfg.address, said["with"])
    without = said.get("without", "")
    if "joined" in without.splitlines():
        raise without_token(cfg.address)
    if "without" in said and not _refuses(without):
        raise LudusError(
            "E502",
            f"it is not known whether the cluster at {cfg.address} asks for a token",
            where="ray.address",
            why="it did not refuse a connection without one in time: a slow machine or network",
            fix="try again; on a private network  --insecure",
        )


def without_token(address: str) -> LudusError:
    return LudusError(
        "E502",
        f"the cluster at {address} asks for no token",
        where="ray.address",
        why="whoever reaches it can run programs on all its nodes, and on this machine",
        fix="start its nodes with  RAY_AUTH_MODE=token ; on a private network  --insecure",
    )


def _probe(address: str, values: dict[str, str]) -> subprocess.Popen[str]:
    environ = {k: v for k, v in os.environ.items() if k not in (TOKEN, TOKEN_PATH)}
    if values["RAY_AUTH_MODE"] == "disabled":
        values = {k: v for k, v in values.items() if k != TOKEN}
    return subprocess.Popen(
        [sys.executable, "-c", PROBE, address], env={**environ, **LIMITS, **values}, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def _answer(probe: subprocess.Popen[str], deadline: float) -> str:
    try:
        return probe.communicate(timeout=max(0.1, deadline - time.monotonic()))[0]
    except subprocess.TimeoutExpired:
        probe.kill()
        return probe.communicate()[0]


def _refuses(said: str) -> bool:
    """Whether a cluster refused the token of a probe, or that it had none."""
    return "InvalidAuthToken" in said or "AuthenticationError" in said


def _explain(address: str, said: str) -> LudusError:
    if _refuses(said):
        return LudusError(
            "E502",
            f"the cluster at {address} refuses the token",
            where="ray.key_file",
            why="the token is of another cluster, or was changed",
            fix="copy the token file of the head node, and  chmod 600  it",
        )
    if "ersion mismatch" in said:
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        start = next(i for i, line in enumerate(lines) if "ersion mismatch" in line)
        return LudusError(
            "E502",
            f"the cluster at {address} has other versions: {' '.join(lines[start : start + 7])}",
            where="ray.address",
            why="Ray needs the same version of Ray and of Python on every node",
            fix="install the versions of the cluster here",
        )
    if "No node info found" in said:
        return LudusError(
            "E502",
            f"this machine is no node of the cluster at {address}",
            where="ray.address",
            why="a program joins a cluster through a Ray node on its own machine",
            fix=f"ludus actor --join {address}  on this machine, as well",
        )
    why = "something else than Ray listens there, or its head node is hung"
    return _refused(address, "no answer that Ray would give", why)


def check_version(name: str, version: str) -> None:
    if version != __version__:
        raise LudusError(
            "E502",
            f"{name} runs Ludus {version}, the learner {__version__}",
            where=f"ray.address, {name}",
            why="the nodes of the cluster have another version installed",
            fix=f"install Ludus {__version__} on every node",
        )
