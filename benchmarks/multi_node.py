"""A run on three hosts that have a network between them, and what faults of hosts do to it.

    python benchmarks/multi_node.py [--log FILE] [--seconds 15]

Each host is a network namespace with its own address (net_hosts.py). Host 0 has the head of the
cluster and the learner, hosts 1 and 2 have two actors each; the token is on. In turn: host 1 is cut
off the network for 10 s, then for 60 s; host 2 is lost for good; the learner is killed and started
again. Every row that a learner inserts is numbered by its environment (multi_node_env.py), so rows
that come twice, or chunks with gaps, show. Writes results/multi_node.json: node lists before,
during and after each fault, the steps done meanwhile, pids of actors, and the count of rows. Needs
root.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from multi_node_env import ROWS
from net_hosts import Hosts, possible

from ludus.bench.speed import machine

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "multi_node.json"
PORT = 6379
HEAD, FIRST, SECOND = 0, 1, 2
ACTORS = 2  # of each of the two hosts
LONGEST = 240.0  # seconds that are waited for one thing
WATCH = """
import json, sys, ray
ray.init(address=sys.argv[1], _node_ip_address=sys.argv[2], log_to_driver=False,
         configure_logging=False, logging_level="error")
for _ in sys.stdin:
    nodes = [{"address": n["NodeManagerAddress"], "id": n["NodeID"][:8], "alive": n["Alive"]}
             for n in ray.nodes()]
    print("nodes", json.dumps(nodes), flush=True)
"""


class Trial:
    """The hosts, what runs on them, and the log of what happened."""

    actor_hosts: tuple[int, ...] = (FIRST, SECOND)
    run_words: tuple[str, ...] = ("dqn", "run.actors=4")

    def __init__(self, hosts: Hosts, folder: Path, log: Path | None) -> None:
        self.hosts, self.folder, self.log, self.begun = hosts, folder, log, time.monotonic()
        self.events: list[dict[str, Any]] = []
        self.key, self.rows = folder / "key", folder / "rows.jsonl"
        self.address = f"{hosts.addresses[HEAD]}:{PORT}"
        self.environ = {"PYTHONPATH": f"{HERE.parent}:{HERE}", "OMP_NUM_THREADS": "1"}
        self.learner: subprocess.Popen[Any] | None = None
        self.recording = {ROWS: str(self.rows)}  # for the process that holds the replay

    def say(self, text: str) -> None:
        line = f"{time.monotonic() - self.begun:7.1f} s  {text}"
        print(line, flush=True)
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(line + "\n")

    def ludus(self, host: int, name: str, *words: str, **environ: str) -> subprocess.Popen[Any]:
        return self.hosts.start(
            host, [sys.executable, "-m", "ludus", *words], log=self.folder / f"{name}.log",
            env={**self.environ, **environ},
        )  # fmt: skip

    def until(self, what: str, done: Callable[[], Any]) -> Any:
        """Wait until `done` returns something true, and return it."""
        end = time.monotonic() + LONGEST
        while not (found := done()):
            if time.monotonic() > end or (self.learner and self.learner.poll() is not None):
                logs = "\n".join(
                    f"--- {f.name}\n{f.read_text()[-1500:]}" for f in self.folder.glob("*.log")
                )
                raise SystemExit(f"not seen within {LONGEST:g} s: {what}\n{logs}")
            time.sleep(0.5)
        return found

    # The cluster.
    def start_cluster(self) -> None:
        key = ("--key-file", str(self.key))
        host = self.hosts.addresses
        self.ludus(HEAD, "head", "head", "--host", host[HEAD], "--port", str(PORT), *key)
        self.until("the head runs", lambda: self._said("head", "head of a cluster"))
        for i in self.actor_hosts:
            join = ("--join", self.address, "--host", host[i], "--actors", str(ACTORS))
            self.ludus(i, f"actor{i}", "actor", *join, *key)
        for i in self.actor_hosts:
            self.until(f"host {i} joins", lambda i=i: self._said(f"actor{i}", "joined"))
        self.watch = subprocess.Popen(
            self.hosts.words(HEAD, [sys.executable, "-c", WATCH, self.address, host[HEAD]]),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            stderr=(self.folder / "watch.log").open("w"),
            env={**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.key)},
        )  # fmt: skip
        self.hosts.started.append(self.watch)
        self.say(f"cluster: head on host 0, room for 2 actors on hosts {self.actor_hosts}")

    def _said(self, name: str, text: str) -> bool:
        file = self.folder / f"{name}.log"
        return file.exists() and text in file.read_text()

    def nodes(self) -> list[dict[str, Any]]:
        assert self.watch.stdin is not None and self.watch.stdout is not None
        self.watch.stdin.write("\n")
        self.watch.stdin.flush()
        while not (line := self.watch.stdout.readline()).startswith("nodes "):
            if not line:
                raise SystemExit("the watcher of the cluster has ended")
        found: list[dict[str, Any]] = json.loads(line.removeprefix("nodes "))
        return found

    def alive(self, host: int) -> list[str]:
        """Ids of the living nodes of a host."""
        address = self.hosts.addresses[host]
        return [n["id"] for n in self.nodes() if n["address"] == address and n["alive"]]

    # The learner.
    def start_learner(self) -> None:
        self.learner = self.ludus(
            HEAD, "learner", "learner", "--join", self.address, "--key-file", str(self.key),
            self.run_words[0], "NumberedCartPole-v0", "run.imports=[multi_node_env]",
            *self.run_words[1:],
            "env.num=2", "run.steps=100M", "algo.warmup=500", "log.every=500",
            "run.checkpoint_every=5k", "run.exact=off", "ray.keep=5m", "log.tensorboard=false",
            "log.report=false", "actor.hang_seconds=90", "--run", "trial",
            "--runs-dir", str(self.folder / "runs"), **self.recording,
        )  # fmt: skip

    def newest(self) -> dict[str, Any]:
        """The newest line of metrics."""
        file = self.folder / "runs" / "trial" / "metrics.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return json.loads(lines[-1]) if lines else {}

    def step(self) -> int:
        return int(self.newest().get("step", 0))

    def actors(self) -> int:
        return int(self.newest().get("actors/alive", 0))

    def goes_on(self, more: int = 1000) -> int:
        """Wait until the run has done so many more steps; return how many."""
        before = self.step()
        self.until(f"{more} more steps", lambda: self.step() >= before + more)
        return self.step() - before

    def pids(self, host: int) -> list[int]:
        """The processes of actors on a host."""
        found = []
        for pid in self.hosts.pids(host):
            try:
                if "RayActor" in " ".join(psutil.Process(pid).cmdline()):
                    found.append(pid)
            except psutil.NoSuchProcess:
                continue
        return sorted(found)

    def event(self, what: str, **more: Any) -> None:
        at = round(time.monotonic() - self.begun, 1)
        row = {"at": at, "event": what, "step": self.step(), "nodes": self.nodes(), **more}
        self.events.append(row)
        self.say(f"{what}: step {row['step']} " + json.dumps(more))

    # Faults.
    def cut_off(self, host: int, seconds: float, meanwhile: Callable[[], None]) -> None:
        self.hosts.cut(host)
        end = time.monotonic() + seconds
        meanwhile()
        time.sleep(max(0.0, end - time.monotonic()))
        self.hosts.mend(host)

    def short_cut(self) -> None:
        before, ids, step = self.pids(FIRST), self.alive(FIRST), self.step()
        self.event("before a cut of 10 s", pids=before)
        self.cut_off(FIRST, 10, lambda: self.event("cut for 10 s"))
        self.goes_on()
        self.until("all actors", lambda: self.actors() == 2 * ACTORS)
        after = self.pids(FIRST)
        self.event("after a cut of 10 s", steps=self.step() - step, pids=after,
                   same_pids=after == before, same_node=self.alive(FIRST) == ids)  # fmt: skip

    def long_cut(self) -> None:
        ids = self.alive(FIRST)

        def meanwhile() -> None:
            self.until("the node is dropped", lambda: not self.alive(FIRST))
            self.event("cut for 60 s: dropped", steps=self.goes_on())

        self.cut_off(FIRST, 60, meanwhile)
        self.until("a new node", lambda: set(self.alive(FIRST)) - set(ids))
        self.until("all actors", lambda: self.actors() == 2 * ACTORS)
        self.event("after a cut of 60 s", steps=self.goes_on(), pids=self.pids(FIRST),
                   new_node=self.alive(FIRST) != ids)  # fmt: skip

    def lose(self) -> None:
        self.hosts.kill(SECOND)
        self.until("the node is dropped", lambda: not self.alive(SECOND))
        self.until("two actors", lambda: self.actors() == ACTORS)
        self.event("host 2 lost for good", steps=self.goes_on())

    def restart_learner(self) -> None:
        assert self.learner is not None
        before, step = self.pids(FIRST), self.step()
        for pid in self.hosts.pids(HEAD):
            if "ludus learner" in " ".join(psutil.Process(pid).cmdline()[2:5]):
                os.kill(pid, signal.SIGKILL)
        self.learner.send_signal(signal.SIGKILL)
        self.learner.wait()
        self.event("learner killed", pids=self.pids(FIRST))
        time.sleep(3)
        self.start_learner()
        self.until("the learner goes on", lambda: self.step() > step)
        after = self.pids(FIRST)
        self.event("learner again", pids=after, same_pids=bool(after) and after == before)

    def run(self, seconds: float) -> dict[str, Any]:
        self.start_cluster()
        self.start_learner()
        self.until("four actors", lambda: self.actors() == 2 * ACTORS)
        start, step = time.monotonic(), self.step()
        time.sleep(seconds)
        rate = (self.step() - step) / (time.monotonic() - start)
        self.event("training", steps_per_second=round(rate))
        self.short_cut()
        self.long_cut()
        self.lose()
        self.restart_learner()
        assert self.learner is not None
        self.learner.terminate()
        self.learner.wait(60)
        rows = count_rows(self.rows)
        self.say(f"rows {rows}")
        return {"command": "python benchmarks/multi_node.py", "machine": machine(),
                "events": self.events, "rows": rows}  # fmt: skip


def count_rows(file: Path) -> dict[str, int]:
    """Rows inserted, rows that came twice, and chunks that are not a whole piece of a stream."""
    seen: set[tuple[int, int]] = set()
    rows = twice = broken = chunks = 0
    for line in file.read_text().splitlines():
        chunk = json.loads(line)
        chunks += 1
        for stream in chunk["rows"]:
            names, counts = {n for n, _ in stream}, [c for _, c in stream]
            broken += len(names) != 1 or counts != list(range(counts[0], counts[0] + len(counts)))
            for pair in map(tuple, stream):
                rows, twice = rows + 1, twice + (pair in seen)
                seen.add(pair)
    return {"chunks": chunks, "rows": rows, "rows_twice": twice, "broken_chunks": broken}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--seconds", type=float, default=15.0)
    args = parser.parse_args()
    if why := possible():
        raise SystemExit(f"no hosts can be made here: {why}")
    folder = Path(tempfile.mkdtemp(prefix="ludus-hosts-"))
    print(f"logs, removed at the end unless the trial fails: {folder}")
    with Hosts(3) as hosts:
        found = Trial(hosts, folder, args.log).run(args.seconds)
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
