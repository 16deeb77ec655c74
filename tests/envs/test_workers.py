"""Environments in processes: equality, deaths, hangs, orphans."""

import os
import re
import signal
import subprocess
import sys
import warnings

import gymnasium as gym
import numpy as np
import psutil
import pytest

from ludus.envs.backends.workers import Workers, register_shipped
from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs
from ludus.errors import LudusError
from tests.envs.recorder import collect
from tests.envs.test_on_error import flaky
from tests.started import survivors


def faulty(fault, **settings):
    args = {"fault": fault, "after": 2}
    return EnvConfig(id="ludus/Faulty-v0", args=args, num=3, workers=2, **settings)


def pids(envs):
    assert isinstance(envs._backend, Workers)
    return [c.process.pid for c in envs._backend._children]


@pytest.mark.accept(78)
@pytest.mark.parametrize("id", ["Pendulum-v1", "ludus/Counter-v0", "ludus/IdentityMulti-v0"])
def test_workers_equal_the_serial_backend(id):
    cfg = EnvConfig(id=id, num=5)
    with make_envs(cfg, seed=1) as envs:
        here = collect(envs, 30)
    with make_envs(cfg.model_copy(update={"workers": 3}), seed=1) as envs:
        there = collect(envs, 30)
        assert len(pids(envs)) == 3
    for name in ("obs", "reward", "discount", "last", "first", "mask"):
        np.testing.assert_array_equal(getattr(here, name), getattr(there, name))
    assert here.episodes == there.episodes


@pytest.mark.accept(78)
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_an_error_names_the_environment_that_failed(workers):
    """Its number counts all environments, not those of its worker."""
    cfg = flaky(workers=workers).model_copy(update={"on_error": "stop"})
    with make_envs(cfg, seed=1) as envs, pytest.raises(LudusError) as caught:
        collect(envs, 6)
    assert caught.value.where.startswith("environment 1 of ")


def test_an_exception_in_a_worker_comes_with_its_own_traceback():
    with make_envs(faulty("raise"), seed=1) as envs:
        with pytest.raises(LudusError) as caught:
            collect(envs, 5)
        living = pids(envs)
    assert caught.value.code == "E205" and "ZeroDivisionError" in caught.value.what
    where = caught.value.where
    assert re.match(r"environment \d of .*Faulty", where) and "test_envs.py:" in where
    cause = str(caught.value.__cause__)
    assert "the test environment fails on request" in cause and "test_envs.py" in cause
    assert not survivors(living)


@pytest.mark.parametrize(("fault", "code"), [("shape", "E203"), ("nan", "E203"), ("tuple", "E202")])
def test_a_broken_contract_keeps_its_code(fault, code):
    with make_envs(faulty(fault), seed=1) as envs, pytest.raises(LudusError) as caught:
        collect(envs, 5)
    assert caught.value.code == code and re.match(r"environment \d of .*Faulty", caught.value.where)


def test_a_worker_that_dies_is_reported_with_how():
    with make_envs(faulty("exit"), seed=1) as envs, pytest.raises(LudusError) as caught:
        collect(envs, 5)
    assert caught.value.code == "E205" and "exit code 7" in caught.value.what
    with make_envs(EnvConfig(id="ludus/Counter-v0", num=2, workers=2), seed=1) as envs:
        collect(envs, 2)
        os.kill(pids(envs)[1], signal.SIGKILL)
        with pytest.raises(LudusError, match="signal 9") as caught:
            for _ in range(3):
                envs.send(np.zeros(2, int))
                envs.recv()
    assert "environments 1 to 1 of" in caught.value.where


def test_a_hang_ends_in_an_error_and_close_leaves_no_process():
    envs = make_envs(faulty("hang", timeout=0.3), seed=1)
    living = pids(envs)
    with pytest.raises(LudusError, match="no answer to") as caught:
        collect(envs, 5)
    assert caught.value.code == "E205" and "env.timeout" in caught.value.fix
    envs.close()
    assert not survivors(living)
    envs.close()  # twice is allowed


def test_an_environment_that_cannot_be_made_there_stops_the_start(module_of):
    name = module_of(
        """
        import multiprocessing
        from ludus.envs.test_envs import Counter
        class Shy(Counter):
            def __init__(self):
                if multiprocessing.parent_process() is not None:
                    raise RuntimeError("not in a worker")
                super().__init__()
        """
    )
    with pytest.raises(LudusError, match="not in a worker") as caught:
        make_envs(EnvConfig(id=f"{name}:Shy", workers=1), seed=1)
    assert caught.value.code == "E201"


def test_an_id_registered_only_in_this_process_works_in_workers(module_of):
    name = module_of("from ludus.envs.test_envs import Counter\nclass Mine(Counter):\n    pass\n")
    gym.register("OnlyHere-v0", entry_point=f"{name}:Mine")
    try:
        with make_envs(EnvConfig(id="OnlyHere-v0", workers=1), seed=1) as envs:
            assert collect(envs, 3).raw_reward[:, 0].tolist() == [1, 2, 3]
    finally:
        del gym.registry["OnlyHere-v0"]


def test_an_id_that_its_own_package_registers_is_not_registered_twice(module_of):
    """As ale-py's are: gymnasium warns, in every process, of whoever comes second."""
    name = module_of(
        """
        import gymnasium as gym
        from ludus.envs.test_envs import Counter
        class Mine(Counter):
            pass
        gym.register("ItsOwn-v0", entry_point=f"{__name__}:Mine", kwargs={})
        """
    )
    shipped = gym.envs.registration.EnvSpec("ItsOwn-v0", entry_point=f"{name}:Mine")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            register_shipped(shipped)
            gym.make("ItsOwn-v0", disable_env_checker=True).close()
        assert gym.registry["ItsOwn-v0"] is not shipped
    finally:
        gym.registry.pop("ItsOwn-v0", None)


ORPHAN = """
import sys
import numpy as np
from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs
if __name__ == "__main__":
    args = {"fault": "hang", "after": 0}
    cfg = EnvConfig(id="ludus/Faulty-v0", args=args, num=2, workers=2)
    envs = make_envs(cfg, seed=1)
    envs.reset(0)
    envs.send(np.zeros(2, int))
    print(*[c.process.pid for c in envs._backend._children], flush=True)
    envs.recv()
"""


@pytest.mark.parametrize("number", [signal.SIGCONT, signal.SIGSTOP])
def test_nothing_outlives_a_killed_parent(tmp_path, number):
    """Not even a worker that cannot see its parent go: one that is stopped, as one in native code
    that never returns."""
    script = tmp_path / "orphan.py"
    script.write_text(ORPHAN)
    parent = subprocess.Popen(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    try:
        assert parent.stdout is not None
        workers = [int(word) for word in parent.stdout.readline().split()]
        family = [p.pid for p in psutil.Process(parent.pid).children(recursive=True)]
        assert len(workers) == 2 and set(workers) < set(family)
        os.kill(workers[0], number)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    assert not survivors(family)
