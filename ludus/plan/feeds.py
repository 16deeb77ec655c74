"""What feeds of a plan may be mixed, and how many items of a sample each one gives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from ludus.errors import LudusError

if TYPE_CHECKING:
    from ludus.plan.plan import Feed

# The settings of a view that decide the form of its batches.
_FORM = ("n", "gamma", "length", "burn_in")
_FINEST = 1_000_000  # shares are fractions with denominators up to this


class Shares:
    """Splits batches by shares with the largest-remainder method. What a feed got too little or
    too much is carried over, so that the shares of many batches are exact. In integers: nothing is
    rounded, however many batches there are."""

    def __init__(self, shares: Sequence[float]) -> None:
        parts = [Fraction(share).limit_denominator(_FINEST) for share in shares]
        scale = math.lcm(*(part.denominator for part in parts))
        self.weights = [int(part * scale) for part in parts]
        self.total = sum(self.weights)
        self.carry = [0] * len(parts)  # owed to each feed, in items * total; they sum to 0

    def split(self, batch: int) -> list[int]:
        """Return the items of each feed in the next batch. Changes nothing."""
        owed = self._owed(batch)
        counts = [max(0, o // self.total) for o in owed]
        left = [o - c * self.total for o, c in zip(owed, counts, strict=True)]
        while (missing := batch - sum(counts)) != 0:
            if missing > 0:  # to the largest remainder; among equals, to the first feed
                i, more = max(range(len(left)), key=lambda k: (left[k], -k)), 1
            else:
                i, more = min((k for k in range(len(left)) if counts[k]), key=left.__getitem__), -1
            counts[i] += more
            left[i] -= more * self.total
        return counts

    def take(self, batch: int) -> list[int]:
        """`split`, and carry the remainders over to the next batch."""
        counts = self.split(batch)
        owed = self._owed(batch)
        self.carry = [o - c * self.total for o, c in zip(owed, counts, strict=True)]
        return counts

    def _owed(self, batch: int) -> list[int]:
        return [c + batch * w for c, w in zip(self.carry, self.weights, strict=True)]


def check_feeds(feeds: Sequence[Feed]) -> None:
    """Refuse feeds whose items cannot be joined to one batch, or whose shares are not a whole."""
    if not feeds:
        raise _refused("a plan without data", "it has no view and no feeds", "view= and sampler=")
    names = [feed.name for feed in feeds]
    if len(set(names)) < len(names) or not all(name.isidentifier() for name in names):
        why, fix = "checkpoints tell feeds apart by name", "different names of letters and digits"
        raise _refused(f"feeds named {', '.join(names)}", why, fix)
    forms = {feed.name: _form(feed.view) for feed in feeds}
    if len(set(forms.values())) > 1:
        said = ", ".join(f"{name}: {form}" for name, form in forms.items())
        why = "a sample joins the items of all feeds, so they must have the same form"
        raise _refused(
            f"feeds of different batches ({said})", why, "views of the same kind and length"
        )
    if len(feeds) > 1 and type(feeds[0].view).__name__ == "Episode":
        why = "a sample has the same number of every environment, whatever the share"
        raise _refused("several feeds of whole episodes", why, "one feed, or views of unrolls")
    if sum(feed.sampler.kind == "fifo" for feed in feeds) > 1:
        why = "one queue sets the pace of learning"
        raise _refused("several feeds that are queues", why, "one feed with the sampler Fifo")
    shares = [feed.share for feed in feeds]
    if min(shares) <= 0 or abs(sum(shares) - 1) > 1e-6:
        what = f"feeds with the shares {', '.join(f'{share:g}' for share in shares)}"
        raise _refused(what, "they are parts of one batch", "positive shares that sum to 1")


def _form(view: Any) -> str:
    """Equal where batches can be joined."""
    settings = [f"{name}={getattr(view, name)}" for name in _FORM if hasattr(view, name)]
    return f"{type(view).__name__}({', '.join(settings)})"


def _refused(what: str, why: str, fix: str) -> LudusError:
    return LudusError("E104", what, where="the algorithm's plan", why=why, fix=fix)
