"""Rows copied by several threads."""

from __future__ import annotations

import multiprocessing
import threading

import numpy as np
import pytest
import torch

from ludus.replay import copying
from ludus.replay.copying import RowCopy

ROWS = np.random.default_rng(0).integers(0, 256, (300, 40), np.uint8)


@pytest.fixture(autouse=True, params=[1, 2, 5])
def threads(request, monkeypatch):
    monkeypatch.setattr(copying, "ALONE", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: request.param)


def copied(count, seed=0):
    index = np.random.default_rng(seed).integers(0, 300, count)
    out = np.zeros((count, 40), np.uint8)
    copy = RowCopy(ROWS, index, out)
    return copy, out, ROWS[index]


@pytest.mark.parametrize("count", [0, 1, 7, 1000])
def test_every_row_is_there_after_waiting(count):
    for seed in range(20):
        copy, out, want = copied(count, seed)
        if seed % 2:
            copy.help()
        copy.wait()
        assert np.array_equal(out, want)


def test_helpers_that_never_come_are_not_waited_for(monkeypatch):
    monkeypatch.setattr(copying._helpers, "call", lambda copy: None)
    copy, out, want = copied(500)
    copy.wait()
    assert np.array_equal(out, want)
    copy.serve()  # one that is late finds nothing to do


def test_what_fails_in_a_helper_is_raised_by_the_caller(monkeypatch):
    def fail(self):
        if threading.current_thread() is not threading.main_thread():
            raise MemoryError("no room")

    if torch.get_num_threads() == 1:
        return
    called = []
    monkeypatch.setattr(copying._helpers, "call", called.append)
    copy, _, _ = copied(500)
    monkeypatch.setattr(RowCopy, "help", fail)
    helper = threading.Thread(target=called[0].serve)
    helper.start()
    helper.join()
    with pytest.raises(MemoryError, match="no room"):
        copy.wait()


def test_several_threads_may_copy_at_once():
    failed = []

    def work(seed):
        for i in range(30):
            copy, out, want = copied(400, 100 * seed + i)
            copy.wait()
            if not np.array_equal(out, want):
                failed.append(seed)

    workers = [threading.Thread(target=work, args=(s,)) for s in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not failed


def _in_a_fork(answers):
    copy, out, want = copied(500)
    copy.wait()
    answers.put(bool(np.array_equal(out, want)))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
def test_a_forked_process_starts_helpers_of_its_own():
    copied(500)[0].wait()
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=_in_a_fork, args=(answers,))
    child.start()
    assert answers.get(timeout=30)
    child.join(30)
    assert child.exitcode == 0
