"""Views: the forms in which an algorithm wants its data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class NStep:
    """View: single transitions with n-step rewards, discounted by gamma."""

    n: int = 1
    gamma: float = 0.99


@dataclass(frozen=True)
class Unroll:
    """View: `length` consecutive rows as collected; they may span several episodes."""

    length: int


@dataclass(frozen=True)
class Sequence:
    """View: `burn_in + length` rows within one episode, started every `period` rows of it.

    The first `burn_in` rows only restore the recurrent state: nothing is learned from them. A
    sequence that starts with its episode needs none, since its state is known: every row trains.
    """

    length: int
    period: int
    burn_in: int = 0


@dataclass(frozen=True)
class Episode:
    """View: `per_env` whole episodes of every environment, padded to the longest. The same number
    from each, because the first k to finish would be mostly short ones.

    An episode that reaches `max_length` rows is truncated there for the learner.
    """

    per_env: int = 1
    max_length: int | None = None


View: TypeAlias = NStep | Unroll | Sequence | Episode
