"""One run per directory."""

import json
import os
import socket
import subprocess
import sys
import time

import pytest

from ludus.errors import LudusError
from ludus.track.run_dir.lock import RunLock, holder

HOLD = """
import sys, pathlib
from ludus.track.run_dir.lock import RunLock
RunLock(pathlib.Path(sys.argv[1])).acquire()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path):
    """Another process that holds the lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def test_a_second_process_is_refused_with_the_holder_named(tmp_path, other):
    with pytest.raises(LudusError) as caught:
        RunLock(tmp_path).acquire()
    assert caught.value.code == "E302"
    assert f"process {other.pid}" in caught.value.what
    assert socket.gethostname() in caught.value.what
    assert holder(tmp_path).pid == other.pid


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path, other):
    other.kill()
    other.wait()
    assert json.loads((tmp_path / "LOCK").read_text())["pid"] == other.pid
    assert holder(tmp_path) is None
    with RunLock(tmp_path):
        assert holder(tmp_path).pid == os.getpid()
    assert holder(tmp_path) is None


def test_two_locks_in_one_process_exclude_each_other_too(tmp_path):
    with RunLock(tmp_path), pytest.raises(LudusError):
        RunLock(tmp_path).acquire()
    with RunLock(tmp_path) as lock:
        assert lock.acquire() is lock


def test_a_living_holder_on_another_host_is_respected(tmp_path):
    foreign = {"pid": 7, "host": "elsewhere", "started": "today"}
    (tmp_path / "LOCK").write_text(json.dumps(foreign))
    (tmp_path / "status.json").write_text(json.dumps({"heartbeat": time.time()}))
    with pytest.raises(LudusError, match="elsewhere"):
        RunLock(tmp_path).acquire()
    assert holder(tmp_path).host == "elsewhere"
    (tmp_path / "status.json").write_text(json.dumps({"heartbeat": time.time() - 3600}))
    with RunLock(tmp_path):
        assert holder(tmp_path).pid == os.getpid()


def test_garbage_in_the_lock_file_is_no_obstacle(tmp_path):
    (tmp_path / "LOCK").write_bytes(b"\xff\x00{")
    with RunLock(tmp_path):
        assert holder(tmp_path).pid == os.getpid()


def test_an_unwritable_directory_is_e301(tmp_path):
    with pytest.raises(LudusError) as caught:
        RunLock(tmp_path / "missing").acquire()
    assert caught.value.code == "E301"
