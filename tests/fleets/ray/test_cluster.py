"""Ray of this machine listens to nobody else and ends with its learner; others are joined with a
token, or refused with one clear error."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from importlib import metadata
from pathlib import Path

import psutil
import pytest
import ray

import ludus
from ludus import LudusError
from ludus.fleets.ray import checks, cluster, load_fleet
from ludus.fleets.ray.node import ADDRESS
from ludus.settings.sections import RayConfig
from tests.started import kept, survivors

ROOT = Path(__file__).parents[3]


def address():
    return ray.get_runtime_context().gcs_address


def refused(**settings):
    """The error of joining a cluster."""
    with pytest.raises(LudusError) as caught:
        cluster.join(RayConfig(**settings))
    assert caught.value.code in ("E502", "E103")
    assert caught.value.fix
    return str(caught.value)


def listening():
    """(process, address) of every listening socket of this process and those below it."""
    own = psutil.Process()
    return [
        (process.name(), c.laddr.ip)
        for process in (own, *own.children(recursive=True))
        for c in process.net_connections()
        if c.status == psutil.CONN_LISTEN
    ]


def test_a_local_ray_listens_on_the_loopback_address_only(ray_here, tmp_path):
    from tests.fleets.ray.test_ray import free

    loop = free(tmp_path)
    found = listening()
    loop.close()
    assert {"gcs_server", "raylet"} <= {name for name, _ in found}, "the list sees Ray's sockets"
    assert {ip for _, ip in found} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    assert not [name for name, _ in found if name.startswith("ludus")], "no socket is our own"


def test_a_local_ray_asks_for_a_token_that_only_this_user_can_read(ray_here):
    folder = cluster.private_folder()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    file = cluster.local_token(folder)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and len(file.read_text()) == 64
    values = {"RAY_AUTH_MODE": "disabled", cluster.LOOPBACK: "0"}
    said = checks._probe(address(), values).communicate()[0]
    assert "joined" not in said and "InvalidAuthToken" in said
    values = {"RAY_AUTH_MODE": "token", cluster.LOOPBACK: "0", checks.TOKEN: file.read_text()}
    assert "joined" in checks._probe(address(), values).communicate()[0].splitlines()


def key(tmp_path, text="a" * 64, mode=0o600):
    file = tmp_path / "key"
    file.write_text(text)
    file.chmod(mode)
    return str(file)


def test_a_wrong_token_is_refused(ray_here, tmp_path):
    assert "refuses the token" in refused(address=address(), key_file=key(tmp_path))


def test_without_a_token_no_cluster_is_joined(ray_here, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (checks.TOKEN, checks.TOKEN_PATH):
        monkeypatch.delenv(name, raising=False)
    assert "no token for the cluster" in refused(address=address())
    assert "no token for the cluster" in refused(address=address(), key_file="/nowhere")
    assert "refuses the token" in refused(address=address(), insecure=True)


def test_a_token_that_others_can_read_is_refused(ray_here, tmp_path):
    said = refused(address=address(), key_file=key(tmp_path, mode=0o644))
    assert "other users can read" in said and "chmod 600" in said


@pytest.mark.parametrize("where", ["nowhere.invalid:6379", "127.0.0.1", "127.0.0.1:x", ":6379"])
def test_a_wrong_address_is_one_error(where, tmp_path):
    assert where in refused(address=where, key_file=key(tmp_path))


def test_a_refused_connection_is_one_error(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        assert "refused" in refused(address=where, key_file=key(tmp_path))


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.0 200 OK\r\n\r\nhello", b"\x80\x04c\x00" * 999])
def test_something_else_than_ray_is_one_error(tmp_path, answer, monkeypatch):
    monkeypatch.setattr(checks, "ANSWER_SECONDS", 4.0)

    def serve():
        while True:
            try:
                peer, _ = server.accept()
            except OSError:
                return
            peer.sendall(answer)
            peers.append(peer)

    peers = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        where = f"127.0.0.1:{server.getsockname()[1]}"
        said = refused(address=where, key_file=key(tmp_path))
    for peer in peers:
        peer.close()
    assert f"no Ray cluster at {where}" in said


def test_errors_come_within_twenty_seconds():
    assert checks.CONNECT_SECONDS + checks.ANSWER_SECONDS < 20


def test_other_versions_are_named():
    said = "RuntimeError: Version mismatch: The cluster was started with:\n  Ray: 2.55\n"
    error = checks._explain("a:1", said)
    assert "Ray: 2.55" in str(error) and error.fix
    with pytest.raises(LudusError, match=r"runs Ludus 0\.0\.1"):
        checks.check_version("actor 3", "0.0.1")
    checks.check_version("actor 3", ludus.__version__)


def test_an_open_cluster_is_joined_only_if_insecure(tmp_path):
    environ = {**os.environ, "PYTHONPATH": str(ROOT), cluster.LOOPBACK: "0"}
    environ |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    folder = cluster.private_folder() / "open"
    node = subprocess.Popen(
        [sys.executable, "-m", "ludus.fleets.ray.node", str(folder), "1", ""],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ,
    )  # fmt: skip
    kept(node)
    where = next(line for line in node.stdout if line.startswith(ADDRESS)).strip()
    where = where.removeprefix(ADDRESS)
    assert "asks for no token" in refused(address=where, key_file=key(tmp_path))
    values = {"RAY_AUTH_MODE": "disabled", cluster.LOOPBACK: "0"}
    checks.check_cluster(RayConfig(address=where, insecure=True), values)
    node.communicate()  # it ends with its standard input


def test_a_cluster_that_did_not_refuse_in_time_counts_as_open(monkeypatch):
    """The probe without a token may be slower than the other one."""
    answers = {"token": "joined\n", "disabled": ""}
    monkeypatch.setattr(checks, "_probe", lambda address, values: values["RAY_AUTH_MODE"])
    monkeypatch.setattr(checks, "_answer", lambda probe, deadline: answers[probe])
    cfg, values = RayConfig(address="a:1"), {"RAY_AUTH_MODE": "token"}
    with pytest.raises(LudusError, match="not known whether the cluster at a:1 asks for a token"):
        checks.check_cluster(cfg, values)
    checks.check_cluster(RayConfig(address="a:1", insecure=True), values)
    answers["disabled"] = "AuthenticationError: RPC error: InvalidAuthToken"
    checks.check_cluster(cfg, values)


def test_a_machine_without_a_node_learns_the_command():
    error = checks._explain("a:1", "RuntimeError: No node info found matching")
    assert "ludus actor --join a:1" in error.fix


@pytest.mark.parametrize("found", [None, "2.54.1"])
def test_a_missing_or_old_package_names_the_extra(monkeypatch, found):
    def version(name):
        if found is None:
            raise metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(LudusError) as caught:
        load_fleet()
    assert caught.value.code == "E501" and "[ray]" in caught.value.fix


def by_command(tmp_path, *words):
    """`ludus train` on Ray, as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "ludus", "train", "dqn", "CartPole-v1", "steps=1k", "fleet=ray",
         "actors=2", "tensorboard=off", "--quiet", "--runs-dir", str(tmp_path), "--run", "x",
         *words],
        capture_output=True, text=True, cwd=tmp_path, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def test_a_run_by_command_joins_a_cluster(ray_here, tmp_path):
    """With the token of the cluster."""
    file = cluster.local_token(cluster.private_folder())
    done = by_command(tmp_path, f"ray.address={address()}", f"ray.key_file={file}")
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "Ray prints nothing of its own"
    assert "actors/alive" in (tmp_path / "x" / "metrics.jsonl").read_text()
    assert ray.is_initialized() and ray.nodes()[0]["Alive"], "the cluster goes on"


def test_one_error_by_command(tmp_path):
    done = by_command(tmp_path, "ray.address=127.0.0.1:1", f"ray.key_file={key(tmp_path)}")
    assert done.returncode == 1
    assert done.stderr.count("error[") == 1 and "E502" in done.stderr
    assert "the connection was refused" in done.stderr


def test_a_connection_of_this_process_is_used_as_it_is(ray_here):
    assert not cluster.connect(RayConfig(address=address()), 1).mine
    with pytest.raises(LudusError, match="connected to Ray at"):
        cluster.connect(RayConfig(address="127.0.0.1:1"), 1)


ORPHANS = """
import sys
from pathlib import Path
from tests.fleets.ray.test_ray import free
if __name__ == "__main__":
    loop = free(Path(sys.argv[1]))
    print(*loop.fleet.pids(), flush=True)
    while True:
        loop.iterate()
"""


def test_a_killed_learner_leaves_no_process_and_no_memory(tmp_path):
    script = tmp_path / "orphans.py"
    script.write_text(ORPHANS)
    before = set(os.listdir("/dev/shm"))
    parent = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    kept(parent)
    actors = [int(word) for word in parent.stdout.readline().split()]
    family = [p.pid for p in psutil.Process(parent.pid).children(recursive=True)]
    names = {psutil.Process(pid).name() for pid in family}
    assert len(actors) == 2 and set(actors) <= set(family) and {"gcs_server", "raylet"} <= names
    os.kill(actors[0], signal.SIGSTOP)  # one that cannot see its parent go
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert not survivors(family), "neither ours nor Ray's"
    from tests.fleets.test_processes import names_in_use

    assert set(os.listdir("/dev/shm")) - before <= names_in_use()
