"""Plans that nothing could carry out are refused when they are made."""

from __future__ import annotations

import pytest

from ludus.contract import (
    Algorithm,
    Defaults,
    Episode,
    Fifo,
    NStep,
    Plan,
    Prioritized,
    Sequence,
    Uniform,
    Unroll,
)
from ludus.errors import LudusError

REFUSED = {
    "priorities, epochs": (Sequence(4, 2), Prioritized(), {"epochs": 2}),
    "priorities, minibatches": (Sequence(4, 2), Prioritized(), {"minibatches": 2}),
    "transitions, minibatches": (NStep(1), Uniform(), {"minibatches": 2}),
    "transitions, epochs": (NStep(1), Uniform(), {"epochs": 2}),
    "transitions in a queue": (NStep(1), Fifo(), {}),
    "sequences in a queue": (Sequence(4, 2), Fifo(), {}),
    "unrolls by priority": (Unroll(4), Prioritized(), {}),
    "episodes at random": (Episode(), Uniform(), {}),
    "episodes by priority": (Episode(), Prioritized(), {}),
}
SERVED = {
    "transitions": (NStep(1), Prioritized(), {}),
    "sequences": (Sequence(4, 2), Uniform(), {}),
    "unrolls, epochs": (Unroll(4), Fifo(), {"epochs": 2, "minibatches": 2}),
    "old unrolls": (Unroll(4), Uniform(), {}),
    "episodes": (Episode(), Fifo(), {"epochs": 2, "minibatches": 2}),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_plan_that_contradicts_itself_is_refused(what) -> None:
    view, sampler, more = REFUSED[what]
    with pytest.raises(LudusError) as caught:
        Plan(view, sampler, batch=4, capacity=100, **more)
    assert caught.value.code == "E104" and caught.value.fix


@pytest.mark.parametrize("what", SERVED)
def test_a_plan_that_can_be_served_is_not(what) -> None:
    view, sampler, more = SERVED[what]
    assert Plan(view, sampler, batch=4, capacity=100, **more).for_envs(4).batch == 4


def test_more_minibatches_than_rows_are_refused() -> None:
    plan = Plan(Unroll(4), Fifo(), chunk=4, minibatches=9)
    assert plan.for_envs(3).minibatches == 9
    with pytest.raises(LudusError) as caught:
        plan.for_envs(2)
    assert caught.value.code == "E104" and "8 rows" in caught.value.what


def test_every_hook_is_part_of_the_protocol() -> None:
    hooks = {name for name in vars(Defaults) if not name.startswith("_")}
    assert hooks <= set(dir(Algorithm)), "a fleet or a learner may call them all"
