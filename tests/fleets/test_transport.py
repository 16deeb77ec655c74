"""Chunks and weights between processes: what is kept, what is dropped, nothing half-written."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from torch import nn

from ludus.fleets.processes.transport import Mailbox, MailboxError, WeightsBoard
from ludus.process.fork_server import process_context
from ludus.replay.chunk_layout import ChunkLayout
from ludus.types import ArraySpec, Chunk, Discrete, EnvSpec, Rows

SPEC = EnvSpec("x", {"a": ArraySpec((3,), "float32"), "b": ArraySpec((2, 2), "uint8")}, Discrete(4))
STATE = (torch.zeros(2, 5), torch.zeros(2, dtype=torch.int64))
T, N = 3, 2


def chunk(sequence, rng=None):
    rng = rng or torch.Generator().manual_seed(sequence)

    def draw(*shape):
        return torch.rand(shape, generator=rng)

    rows = Rows(
        {"a": draw(T + 1, N, 3), "b": (draw(T + 1, N, 2, 2) * 255).to(torch.uint8)},
        (draw(T, N) * 4).long(), draw(T, N), draw(T, N), draw(T, N),
        draw(T, N) > 0.5, draw(T + 1, N) > 0.5, draw(T, N) > 0.5,
        extras={"log_prob": draw(T, N), "q": draw(T, N, 4)},
        state=(draw(2, 5), (draw(2) * 9).long()),
    )  # fmt: skip
    return Chunk(rows, 0, sequence, 7 * sequence, sequence == 0)


def mailbox(overflow="wait", places=2):
    extras = {"log_prob": ((), torch.float32), "q": ((4,), torch.float32)}
    layout = ChunkLayout.of(SPEC, extras, STATE, T, N)
    return Mailbox(layout, places, overflow, process_context("ludus.envs.make"))


def leaves(rows):
    flat = [*rows.obs.values(), *rows[1:8], *rows.extras.values(), *rows.state]
    return [x for x in flat if x is not None]


def never_waits():
    raise AssertionError("there is room")


def fill(box, count):
    return [box.put(chunk(i), lambda: True) for i in range(count)]


def kept(box, count):
    """Which of the chunks 0.. are still there, by sequence."""
    return [
        i for i in range(count) for place in range(box.places)
        if box.claim(place, i, 0, copy=True) is not None
    ]  # fmt: skip


@pytest.mark.parametrize("copy", [True, False])
def test_a_chunk_arrives_as_it_was_sent(copy):
    box, sent = mailbox(), chunk(3)
    place = box.put(sent, never_waits)
    got = box.claim(place, 3, 5, copy=copy)
    assert (got.source, got.sequence, got.version, got.breaks) == (5, 3, 21, False)
    for a, b in zip(leaves(got.rows), leaves(sent.rows), strict=True):
        assert a.dtype == b.dtype and torch.equal(a, b)
    box.put(chunk(4), never_waits)
    box.release(place)
    box.put(chunk(9), never_waits)  # into the same place
    assert torch.equal(got.rows.reward, sent.rows.reward) is copy


@pytest.mark.accept(63)
@pytest.mark.parametrize(
    ("overflow", "left", "dropped"),
    [("wait", [0, 1], 0), ("oldest", [0, 1], 4), ("latest", [4, 5], 4), ("alternate", [3, 5], 4)],
)
def test_overflow_policies_act_as_named(overflow, left, dropped):
    box = mailbox(overflow)
    fill(box, 6)
    assert box.waiting == 2 and box.dropped == dropped
    assert kept(box, 6) == left


def test_what_is_being_read_is_never_overwritten():
    box = mailbox("latest")
    first, _ = fill(box, 2)
    reading = box.claim(first, 0, 0, copy=False)
    before = reading.rows.reward.clone()
    for i in range(2, 8):
        box.put(chunk(i), never_waits)
    assert torch.equal(reading.rows.reward, before)
    assert kept(box, 8) == [7]


@pytest.mark.accept(41)
def test_waiting_ends_when_a_place_is_free():
    box, waits = mailbox(), []
    fill(box, 2)

    def pause():
        waits.append(1)
        if len(waits) == 3:
            box.claim(0, 0, 0, copy=True)
            box.release(0)
        return False

    assert box.put(chunk(2), pause) == 0 and len(waits) == 3


def test_a_lock_that_is_not_released_is_an_error_not_a_wait(monkeypatch):
    monkeypatch.setattr("ludus.fleets.processes.transport.LOCK_SECONDS", 0.05)
    box = mailbox("latest")
    assert box.lock.acquire(0)
    with pytest.raises(MailboxError):
        box.claim(0, 0, 0, copy=True)
    tries = []
    assert box.put(chunk(0), lambda: bool(tries.append(0)) or len(tries) == 2) is None
    box.lock.release()
    assert box.put(chunk(0), never_waits) == 0


def overwrite_on_and_on(box, pipe, count):
    """Chunks whose every number is their own; each is told of, and none is waited for."""
    value = chunk(0)
    for number in range(count):
        rows = value.rows._replace(
            reward=torch.full((T, N), float(number)),
            state=(torch.full((2, 5), float(number)), torch.full((2,), number)),
        )
        pipe.send((box.put(value._replace(rows=rows, sequence=number), never_waits), number))
    pipe.send(None)


@pytest.mark.parametrize("overflow", ["latest", "alternate", "oldest"])
def test_chunks_that_are_overwritten_meanwhile_are_never_seen_half_written(overflow):
    context, box, count = process_context("ludus.envs.make"), mailbox(overflow, places=3), 3000
    ours, theirs = context.Pipe()
    writer = context.Process(target=overwrite_on_and_on, args=(box, theirs, count), daemon=True)
    writer.start()
    seen = []
    while (result := ours.recv()) is not None:
        place, number = result
        got = None if place is None else box.claim(place, number, 0, copy=False)
        if got is not None:
            numbers = (*got.rows.reward.unique(), *(x for s in got.rows.state for x in s.unique()))
            assert {float(x) for x in numbers} == {float(number)}, "a mixture"
            seen.append(number)
            box.release(place)
    writer.join(10)
    assert seen == sorted(set(seen)) and len(seen) > 10
    assert len(seen) + box.dropped == count


def net_of(value):
    net = nn.ModuleDict({"a": nn.Linear(200, 300), "b": nn.BatchNorm1d(7)})
    with torch.no_grad():
        for tensor in (*net.parameters(), *net.buffers()):
            tensor.fill_(value)
    return net


def publish_on_and_on(board, count):
    for value in range(count):
        board.publish(net_of(value), 10 * value)


def test_weights_are_never_seen_half_written():
    context = process_context("ludus.envs.make")
    board, mine = WeightsBoard(net_of(0), context), net_of(-1)
    assert board.stamp == -1
    count = 400
    writer = context.Process(target=publish_on_and_on, args=(board, count), daemon=True)
    writer.start()
    stamp, seen, deadline = -1, set(), time.monotonic() + 120
    while stamp < count - 1:
        stamp, updates = board.pull(mine, stamp)
        tensors = (*mine.parameters(), *mine.buffers())
        values = {float(v) for t in tensors for v in t.detach().unique()}
        assert len(values) == 1, "a mixture"
        (value,) = values
        assert updates == 10 * value == 10 * stamp
        seen.add(value)
        assert time.monotonic() < deadline
    writer.join(10)
    assert len(seen) > 1
    assert np.isfinite(stamp)
