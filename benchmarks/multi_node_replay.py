"""A replay on a host of its own: what a broken network and the loss of that host do to it.

    python benchmarks/multi_node_replay.py [--log FILE] [--seconds 15]

Three hosts as in multi_node.py, with the token on: host 0 has the head and the learner, host 1 two
actors, and host 2 runs `ludus replay`. In turn: host 2 is cut off the network for 10 s; it is lost
for good. Rows are numbered by their environments, and those that the role on host 2 inserts are
counted. Writes results/multi_node_replay.json. Needs root.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from multi_node import FIRST, HEAD, LONGEST, SECOND, Trial, count_rows
from net_hosts import Hosts, possible

from ludus.bench.speed import machine

RESULTS = Path(__file__).parent / "results" / "multi_node_replay.json"
RUN = ("prioritized-dqn", "run.actors=2", "run.replays=1")


class ReplayTrial(Trial):
    """Host 2 holds the replay instead of actors."""

    actor_hosts = (FIRST,)
    run_words = RUN

    def start_cluster(self) -> None:
        super().start_cluster()
        join = ("--join", self.address, "--key-file", str(self.key))
        host = ("--host", self.hosts.addresses[SECOND])
        self.ludus(SECOND, "replay", "replay", *join, *host, **self.recording)
        self.recording = {}  # the learner has no rows
        self.until("host 2 joins", lambda: self._said("replay", "joined"))

    def roles(self, host: int) -> list[int]:
        """The processes of replay roles on a host."""
        found = []
        for pid in self.hosts.pids(host):
            try:
                if "RayReplay" in " ".join(psutil.Process(pid).cmdline()):
                    found.append(pid)
            except psutil.NoSuchProcess:
                continue
        return sorted(found)

    def losses(self) -> int:
        return int(self.newest().get("replay/role_restarts", 0))

    def updates(self) -> int:
        return int(self.newest().get("updates", 0))

    def learns_on(self, more: int = 500) -> int:
        """Wait until the learner has done so many more updates from that replay."""
        before = self.updates()
        self.until(f"{more} more updates", lambda: self.updates() >= before + more)
        return self.updates() - before

    def short_cut(self) -> None:
        before = self.roles(SECOND)
        self.cut_off(SECOND, 10, lambda: self.event("replay cut off for 10 s"))
        more = self.learns_on()
        after = self.roles(SECOND)
        self.event("after the cut", updates=more, same_role=bool(after) and after == before,
                   roles_lost=self.losses())  # fmt: skip

    def lose(self) -> None:
        self.hosts.kill(SECOND)
        self.until("the role is replaced", lambda: self.losses() == 1)
        more = self.learns_on()
        places = {f"host {i}": self.roles(i) for i in (HEAD, FIRST, SECOND)}
        self.event("host 2 lost for good", updates=more, roles=places, roles_lost=self.losses())

    def run(self, seconds: float) -> dict[str, Any]:
        self.start_cluster()
        self.start_learner()
        self.until("updates", lambda: self.updates() > 0)
        start, step, updates = time.monotonic(), self.step(), self.updates()
        time.sleep(seconds)
        spent = time.monotonic() - start
        self.event(
            "training", steps_per_second=round((self.step() - step) / spent),
            updates_per_second=round((self.updates() - updates) / spent, 1),
            roles={f"host {i}": self.roles(i) for i in (HEAD, FIRST, SECOND)},
        )  # fmt: skip
        self.short_cut()
        self.lose()
        assert self.learner is not None
        self.learner.terminate()
        try:
            self.learner.wait(LONGEST)
        except subprocess.TimeoutExpired:
            raise SystemExit("the learner did not end") from None
        return {"command": "python benchmarks/multi_node_replay.py", "machine": machine(),
                "events": self.events, "rows": count_rows(self.rows)}  # fmt: skip


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
        found = ReplayTrial(hosts, folder, args.log).run(args.seconds)
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
