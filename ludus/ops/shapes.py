"""Shape checks: broadcasting would accept wrong shapes and silently return nonsense."""

from __future__ import annotations

from torch import Tensor


def same_shape(**tensors: Tensor | None) -> None:
    """Refuse tensors of different shapes (None entries are left out). Broadcasting would accept
    [T, B] with [B] and silently return nonsense, so every op checks what it gets."""
    given = {name: t.shape for name, t in tensors.items() if t is not None}
    first = next(iter(given))
    for name, shape in given.items():
        if shape != given[first]:
            raise ValueError(
                f"{name} {list(shape)} must have the shape of {first} {list(given[first])}"
            )


def one_longer(reward: Tensor, **tensors: Tensor) -> None:
    """Refuse a tensor that is not [T+1, B] where reward is [T, B]."""
    want = (reward.shape[0] + 1, *reward.shape[1:])
    for name, t in tensors.items():
        if t.shape != want:
            raise ValueError(f"{name} {list(t.shape)} must be [T+1, B] = {list(want)}")


def one_wider(like: Tensor, **tensors: Tensor) -> None:
    """Refuse a tensor that is not `like` with one more axis at the end: [B, A] for [B]."""
    for name, t in tensors.items():
        if t.shape[:-1] != like.shape:
            raise ValueError(f"{name} {list(t.shape)} must be {[*like.shape, 'A']}")
