"""Hosts of their own on one machine: network namespaces with an address each, joined by a bridge.

    with Hosts(3) as hosts:
        hosts.start(0, ["python", "-m", "http.server"])
        hosts.cut(1), hosts.mend(1)          # take the second host off the network, and back

What crosses from one host to another crosses a real network stack; 127.0.0.1 of one host is not
that of another. Needs root and iproute2. Everything that runs on the hosts is killed at the end.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

NETWORK = "10.77.0"
GONE_SECONDS = 10.0  # for killed processes to be gone


def possible() -> str:
    """Why hosts cannot be made here; empty if they can."""
    if shutil.which("ip") is None:
        return "iproute2 is not installed"
    if os.geteuid() != 0:
        return "only root can make network namespaces"
    name = f"ludus-{os.getpid()}-probe"
    done = _ip("netns", "add", name)
    if done.returncode:
        return done.stderr.strip()
    _ip("netns", "del", name)
    return ""


def _ip(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=False)


def _must(*words: str) -> None:
    done = _ip(*words)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")


class Hosts:
    """`count` hosts, numbered from 0, and the switch between them."""

    def __init__(self, count: int) -> None:
        me = os.getpid()
        self.switch = f"ludus-{me}-switch"
        self.names = [f"ludus-{me}-{i}" for i in range(count)]
        self.links = [f"l{me}h{i}"[-15:] for i in range(count)]
        self.addresses = [f"{NETWORK}.{i + 1}" for i in range(count)]
        self.started: list[subprocess.Popen[Any]] = []

    def __enter__(self) -> Hosts:
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def _make(self) -> None:
        _must("netns", "add", self.switch)
        inside = ("netns", "exec", self.switch, "ip")
        _must(*inside, "link", "add", "bridge", "type", "bridge")
        _must(*inside, "link", "set", "bridge", "up")
        for i, (name, link, address) in enumerate(
            zip(self.names, self.links, self.addresses, strict=True)
        ):
            port = f"port{i}"
            _must("netns", "add", name)
            _must(
                "link", "add", link, "netns", name, "type", "veth",
                "peer", "name", port, "netns", self.switch,
            )  # fmt: skip
            _must(*inside, "link", "set", port, "master", "bridge", "up")
            _must("-n", name, "addr", "add", f"{address}/24", "dev", link)
            _must("-n", name, "link", "set", link, "up")
            _must("-n", name, "link", "set", "lo", "up")

    def words(self, host: int, words: Sequence[str]) -> list[str]:
        """The command that runs `words` on a host."""
        return ["ip", "netns", "exec", self.names[host], *words]

    def start(
        self,
        host: int,
        words: Sequence[str],
        *,
        log: Path | IO[Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[Any]:
        """Start a process on a host; its output goes to `log`."""
        out = log.open("ab") if isinstance(log, Path) else log
        try:
            process = subprocess.Popen(
                self.words(host, words), stdin=subprocess.DEVNULL, stdout=out or subprocess.DEVNULL,
                stderr=subprocess.STDOUT, env={**os.environ, **(env or {})},
            )  # fmt: skip
        finally:
            if isinstance(log, Path) and out is not None:
                out.close()
        self.started.append(process)
        return process

    def run(
        self, host: int, words: Sequence[str], *, seconds: float = 60.0, **more: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host to its end."""
        return subprocess.run(
            self.words(host, words), capture_output=True, text=True, timeout=seconds, **more
        )

    def cut(self, host: int) -> None:
        """Take the host off the network. Its address is kept."""
        _must("-n", self.names[host], "link", "set", self.links[host], "down")

    def mend(self, host: int) -> None:
        _must("-n", self.names[host], "link", "set", self.links[host], "up")

    def pids(self, host: int) -> list[int]:
        """All processes that run on a host."""
        return [int(p) for p in _ip("netns", "pids", self.names[host]).stdout.split()]

    def kill(self, host: int) -> None:
        """Kill all that runs on a host, as a loss of power does."""
        deadline = time.monotonic() + GONE_SECONDS
        while (found := self.pids(host)) and time.monotonic() < deadline:
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in self.started:
                process.poll()  # reap
            time.sleep(0.1)

    def close(self) -> None:
        for host in range(len(self.names)):
            self.kill(host)
        for process in self.started:
            with suppress(subprocess.TimeoutExpired):
                process.wait(GONE_SECONDS)
        for name in (*self.names, self.switch):
            _ip("netns", "del", name)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
