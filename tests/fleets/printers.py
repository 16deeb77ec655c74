"""An environment that prints, as many do."""

from __future__ import annotations

import os
import time

from tests.run.sleepers import Sleeper


class Printer(Sleeper):
    def step(self, action):
        if self.steps % 40 == 0:
            print(f"NOISE of {self.steps}")
        if self.steps % 40 == 20:
            os.write(2, b"NOISE in C\n")
        time.sleep(0.005)  # so that a panel is drawn between
        return super().step(action)
