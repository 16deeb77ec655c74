"""Exploration: how often, how long, and never what is forbidden."""

from __future__ import annotations

import itertools

import torch

from ludus.explore import epsilon_greedy, persistent_greedy, persistent_start


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_epsilon_is_the_share_of_random_actions() -> None:
    q = torch.tensor([[0.0, 1.0, 0.0, 0.0]]).repeat(20000, 1)
    action = epsilon_greedy(q, torch.tensor(0.4), rng())
    assert abs((action != 1).float().mean().item() - 0.4 * 3 / 4) < 0.01


def play(steps: int, epsilon: float, first: bool = False, mask: torch.Tensor | None = None):
    q = torch.tensor([[5.0, 0.0, 0.0]])
    state, g = persistent_start(1), rng()
    flags = torch.tensor([first])
    actions = []
    for _ in range(steps):
        action, state = persistent_greedy(q, torch.tensor(epsilon), state, flags, 2.0, g, mask)
        actions.append(int(action))
    return actions


def test_without_epsilon_it_is_greedy() -> None:
    assert set(play(50, 0.0)) == {0}


def test_exploratory_actions_last_as_long_as_the_zeta_distribution_says() -> None:
    q = torch.zeros(1, 1000)  # so many actions that two equal draws in a row are rare
    state, g, none = persistent_start(1), rng(), torch.tensor([False])
    actions = []
    for _ in range(30000):
        action, state = persistent_greedy(q, torch.tensor(1.0), state, none, 2.0, g)
        actions.append(int(action))
    runs, length = [], 1
    for a, b in itertools.pairwise(actions):
        if a == b:
            length += 1
        else:
            runs.append(length)
            length = 1
    once = sum(r == 1 for r in runs) / len(runs)
    twice = sum(r == 2 for r in runs) / len(runs)
    assert abs(once - 6 / 3.14159**2) < 0.03  # P(1) = 1 / zeta(2)
    assert abs(twice / once - 1 / 4) < 0.04
    assert max(runs) > 20


def test_an_episodes_first_step_ends_a_repetition() -> None:
    long = persistent_start(1)._replace(left=torch.tensor([100]), action=torch.tensor([2]))
    q = torch.tensor([[5.0, 0.0, 0.0]])
    zero = torch.tensor(0.0)
    on, state = persistent_greedy(q, zero, long, torch.tensor([False]), 2.0, rng())
    assert int(on) == 2 and int(state.left) == 99
    off, state = persistent_greedy(q, zero, long, torch.tensor([True]), 2.0, rng())
    assert int(off) == 0 and int(state.left) == 0


def test_a_forbidden_action_is_never_repeated_or_drawn() -> None:
    mask = torch.tensor([[True, False, True]])
    assert set(play(500, 0.5, mask=mask)) == {0, 2}
