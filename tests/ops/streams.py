"""Random unrolls as collectors make them: episodes, ends of both kinds, dummy rows. No ludus."""

import math
from typing import NamedTuple

import torch
from hypothesis import strategies as st

GO, TERMINATE, TRUNCATE, SOFT = "go", "terminate", "truncate", "soft"  # soft: life loss, no reset
ACTIONS = 3


class Stream(NamedTuple):
    reward: torch.Tensor  # [T, B] float64 like all numbers here
    discount: torch.Tensor  # [T, B] gamma folded in
    last: torch.Tensor
    mask: torch.Tensor
    value: torch.Tensor  # [T+1, B]
    rho: torch.Tensor  # [T, B]
    q: torch.Tensor  # [T+1, B, A]
    pi: torch.Tensor  # [T+1, B, A]
    action: torch.Tensor  # [T, B]
    mu: torch.Tensor  # [T, B]

    def rows(self, start, stop):
        """The unroll of rows start..stop-1 alone."""
        longer = {"value", "q", "pi"}
        return Stream(**{k: x[start : stop + (k in longer)] for k, x in self._asdict().items()})


def build(events, *, starts_with_dummy, seed, poison=math.nan):
    """`events[b]` is what happens at each row of column b, were it not a dummy.

    Dummy rows hold `poison` where the algorithms put numbers for them: nothing may read it.
    """
    length, columns = len(events[0]), len(events)
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    last = torch.zeros(length, columns, dtype=torch.bool)
    mask, discount = ~last, torch.full((length, columns), 0.9, dtype=torch.float64)
    for b in range(columns):
        dummy = starts_with_dummy
        for t in range(length):
            mask[t, b] = not dummy
            event = GO if dummy else events[b][t]
            last[t, b] = event in (TERMINATE, TRUNCATE)
            if event in (TERMINATE, SOFT):
                discount[t, b] = 0.0
            dummy = bool(last[t, b])
    pi = normal(length + 1, columns, ACTIONS).softmax(-1)
    action = torch.randint(ACTIONS, (length, columns), generator=rng)
    mu = normal(length, columns, ACTIONS).softmax(-1).gather(-1, action[..., None])[..., 0]
    return Stream(
        reward=normal(length, columns).where(mask, poison),
        discount=discount,
        last=last,
        mask=mask,
        value=normal(length + 1, columns),
        rho=normal(length, columns).exp().where(mask, poison),
        q=normal(length + 1, columns, ACTIONS),
        pi=pi,
        action=action,
        mu=mu.where(mask, 0.0 if math.isnan(poison) else 0.5),
    )


@st.composite
def streams(draw):
    length = draw(st.integers(1, 12))
    columns = draw(st.integers(1, 3))
    event = st.sampled_from([GO, GO, GO, TERMINATE, TRUNCATE, SOFT])
    column = st.lists(event, min_size=length, max_size=length)
    return build(
        [draw(column) for _ in range(columns)],
        starts_with_dummy=draw(st.booleans()),
        seed=draw(st.integers(0, 2**31)),
        poison=draw(st.sampled_from([math.nan, 100.0])),
    )


def column_lists(tensor, b):
    """Column b of a time-major tensor as nested Python lists."""
    return tensor[:, b].tolist()


def assert_rows(actual, truths, *, rel=1e-9):
    """Each column of `actual` [T, B] equals its list of truths wherever that is not None."""
    for b, truth in enumerate(truths):
        for t, expected in enumerate(truth):
            if expected is not None:
                got = actual[t, b].item()
                assert math.isclose(got, expected, rel_tol=rel, abs_tol=rel), (t, b, got, expected)
