"""What cannot be captured goes on eagerly from the same state and says why, or is refused."""

from __future__ import annotations

import pytest
import torch

import ludus
from ludus.compute.cuda_graph import CaptureError, Graph
from ludus.learn.eager import EagerUpdates
from tests.learn.test_captured import DEVICES, loop_of, train


def spoil(monkeypatch, loop, method, device):
    """A method that runs, but not inside a capture: it waits for a number, or (without a GPU, where
    that is allowed) fails in the call that stands for the capture."""
    kind, calls = type(loop.learner.algorithm), []
    real = getattr(kind, method)

    def waiting(self, *arguments):
        result = real(self, *arguments)
        calls.append(1)
        if device == "cuda":
            torch.ones(1, device=device).sum().item()
        elif len(calls) == 2:
            raise RuntimeError("operation not permitted when stream is capturing\nand more")
        return result

    monkeypatch.setattr(kind, method, waiting)
    return calls


def allowed_to_fall_back(tmp_path, name, device):
    """As `auto` builds it where there is a GPU."""
    loop = loop_of(tmp_path, name, device)
    loop.updates.must_capture = loop.fleet.collector.runner.must_capture = False
    return loop


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["dqn", "prioritized-dqn", "ppo"])
def test_a_failed_capture_learns_on_eagerly(tmp_path, monkeypatch, name, device):
    eager = loop_of(tmp_path, name, device)
    eager.updates = EagerUpdates(eager.store, eager.learner)
    updates = 8 if name == "ppo" else 40
    expected = train(eager, updates)
    loop = allowed_to_fall_back(tmp_path, name, device)
    said = []
    loop.hooks.changed = lambda part, mode: said.append((part, mode))
    spoil(monkeypatch, loop, "loss", device)
    while loop.learner.updates < 1:
        loop.iterate()
        loop.run_periodic()
    ((part, mode),) = said
    assert part == "updates" and mode.startswith("eager: ") and "capturing" in mode
    assert "\n" not in mode and loop.compute_info["updates"] == loop.updates.mode == mode
    got = train(loop, updates)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    if device == "cpu":
        assert torch.equal(got, expected), "the failed capture left no trace"
    assert loop.store.samples_drawn == eager.store.samples_drawn


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["dqn", "ppo"])
def test_a_failed_capture_acts_on_eagerly(tmp_path, monkeypatch, name, device):
    plain = loop_of(tmp_path, name, device)
    loop = allowed_to_fall_back(tmp_path, name, device)
    rows = []
    for each in (plain, loop):
        if each is loop:
            spoil(monkeypatch, loop, "act", device)
        each.fleet.publish(each.learner.net)
        got = [each.fleet.poll(each.values.at(500))[0].chunk.rows for _ in range(4)]
        rows.append(torch.cat([r.action.cpu().flatten() for r in got]))
        each.close()
    assert loop.fleet.acting.startswith("eager: ") and "capturing" in loop.fleet.acting
    assert torch.equal(*rows)


@pytest.mark.parametrize("method", ["loss", "act"])
def test_capture_on_refuses_what_fails(tmp_path, monkeypatch, method):
    loop = loop_of(tmp_path, "dqn")
    spoil(monkeypatch, loop, method, "cpu")
    with pytest.raises(ludus.LudusError, match="E104") as caught:
        train(loop, 3)
    assert "run.capture=on" in caught.value.what and "run.capture=auto" in caught.value.fix
    loop.close()


@pytest.mark.parametrize("device", DEVICES)
def test_everything_is_put_back_whatever_fails(device):
    """Also memory that ran out, which is nobody's reason to go on eagerly."""
    place = torch.ones(3, device=device)
    rng = torch.Generator(device=device).manual_seed(3)
    state, calls = rng.get_state(), []

    def write(error):
        place.add_(torch.rand(3, generator=rng, device=device))
        calls.append(1)
        if len(calls) > (3 if device == "cuda" else 1):
            raise error

    for error, expected in (
        (torch.OutOfMemoryError("full"), torch.OutOfMemoryError),
        (ValueError("no"), CaptureError),
    ):
        calls.clear()
        with pytest.raises(expected):
            Graph(
                lambda error=error: write(error), torch.device(device),
                keeps=lambda: [place], generators=[rng],
            )  # fmt: skip
        assert torch.equal(place, torch.ones_like(place))
        assert torch.equal(rng.get_state(), state)
        torch.rand(3, generator=rng, device=device)  # and it can be used
        rng.set_state(state)


def test_what_fails_anyway_is_not_called_uncapturable():
    def broken():
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        Graph(broken, torch.device("cpu"), keeps=list, generators=[])
