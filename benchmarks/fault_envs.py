"""An environment with a fault, for `actor_faults.py`. Its actors import it by this file's name."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from gymnasium.envs.classic_control.cartpole import CartPoleEnv


class SleepsOnce(CartPoleEnv):
    """CartPole that sleeps for ever inside a step, once: the first that has done `after` steps
    writes the time (monotonic) to the file `asleep`, and no other does while it is there."""

    def __init__(self, asleep: str, after: int = 1000) -> None:
        super().__init__()
        self.asleep, self.after, self.steps = Path(asleep), after, 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps >= self.after:
            try:
                with self.asleep.open("x") as file:
                    file.write(f"{time.monotonic()}\n")
            except FileExistsError:
                self.after = 10**18
            else:
                time.sleep(1e6)
        return super().step(action)
