"""What strangers on the network of a run can do to it.

    python benchmarks/multi_node_attack.py

The hosts of multi_node.py, with a fourth that has no token. From there every listening port of the
other three gets random bytes, a pickle that would write a file, HTTP and half a message; then
`ludus actor --join` is tried with another token and with none. Recorded: the ports and who listens,
whether anything was executed, the error of each attempt, and whether training went on with the same
processes. Writes results/multi_node_attack.json. Needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import secrets
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from multi_node import ACTORS, FIRST, HEAD, SECOND, Trial, count_rows
from net_hosts import Hosts, possible

from ludus.bench.speed import machine

RESULTS = Path(__file__).parent / "results" / "multi_node_attack.json"
STRANGER = 3
# Prints [process, address, port] of everything that listens on the host that runs it.
LISTENING = """
import json, psutil
names = {p.pid: p.name() for p in psutil.process_iter()}
print(json.dumps([[names.get(c.pid, "?"), c.laddr.ip, c.laddr.port]
                  for c in psutil.net_connections() if c.status == "LISTEN"]))
"""
# Sends each file to each port and waits for up to a second for an answer.
SEND = """
import json, socket, sys
address, ports, files = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3:]
reached = []
for port in ports:
    for file in files:
        try:
            with socket.create_connection((address, port), timeout=1) as peer:
                reached.append(port)
                peer.sendall(open(file, "rb").read())
                peer.shutdown(socket.SHUT_WR)
                peer.settimeout(1)
                peer.recv(1 << 16)
        except OSError:
            pass
print(json.dumps(sorted(set(reached))))
"""


class Bomb:
    """Writes a file where it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return os.mknod, (str(self.file),)


def payloads(folder: Path) -> tuple[list[str], Path]:
    proof = folder / "executed"
    bomb = pickle.dumps(Bomb(proof))
    kinds = {
        "random": secrets.token_bytes(4096),
        "pickle": bomb,
        "framed-pickle": len(bomb).to_bytes(4, "big") + bomb,
        "http": b"POST /api/jobs/ HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
        "half": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00",
    }
    for name, data in kinds.items():
        (folder / name).write_bytes(data)
    return [str(folder / name) for name in kinds], proof


def listening(hosts: Hosts, host: int) -> list[list[Any]]:
    found: list[list[Any]] = json.loads(hosts.run(host, [sys.executable, "-c", LISTENING]).stdout)
    return found


def attack(trial: Trial, folder: Path) -> dict[str, Any]:
    hosts = trial.hosts
    files, proof = payloads(folder)
    found: dict[str, Any] = {"ports": {}}
    for host in (HEAD, FIRST, SECOND):
        ports = listening(hosts, host)
        # What listens on the loopback address of a host cannot be reached from another one.
        numbers = json.dumps(sorted({port for _, _, port in ports}))
        done = hosts.run(
            STRANGER, [sys.executable, "-c", SEND, hosts.addresses[host], numbers, *files],
            seconds=600,
        )  # fmt: skip
        found["ports"][host] = {"listening": ports, "reached": json.loads(done.stdout)}
        trial.say(f"host {host}: {len(ports)} ports listen, {done.stdout.strip()} were reached")
    found["executed"] = proof.exists()
    found["attempts"] = {}
    (folder / "other-key").write_text(secrets.token_hex(32))
    (folder / "other-key").chmod(0o600)
    for name, words in {
        "another token": ["--key-file", str(folder / "other-key")],
        "no token": ["--key-file", str(folder / "no-such-key")],
        "insecure": ["--insecure"],
    }.items():
        done = hosts.run(
            STRANGER,
            [sys.executable, "-m", "ludus", "actor", "--join", trial.address, *words],
            env={**os.environ, **trial.environ, "HOME": str(folder)},
        )  # fmt: skip
        error = next((x for x in done.stderr.splitlines() if x.startswith("error[")), "")
        found["attempts"][name] = {
            "exit": done.returncode, "error": error, "errors": done.stderr.count("error["),
        }  # fmt: skip
        trial.say(f"join with {name}: {error}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    if why := possible():
        raise SystemExit(f"no hosts can be made here: {why}")
    folder = Path(tempfile.mkdtemp(prefix="ludus-hosts-"))
    print(f"logs, removed at the end unless the trial fails: {folder}")
    with Hosts(4) as hosts:
        trial = Trial(hosts, folder, None)
        trial.start_cluster()
        trial.start_learner()
        trial.until("four actors", lambda: trial.actors() == 2 * ACTORS)
        before = {host: trial.pids(host) for host in (FIRST, SECOND)}
        found = attack(trial, folder)
        found["steps_afterwards"] = trial.goes_on(5000)
        found["same_actors"] = {host: trial.pids(host) for host in before} == before
        found["nodes"] = trial.nodes()
        found["rows"] = count_rows(trial.rows)
    found |= {"command": "python benchmarks/multi_node_attack.py", "machine": machine()}
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
