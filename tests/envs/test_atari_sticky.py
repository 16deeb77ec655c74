"""How often the emulators of the native path really repeat an action, read from their screens.

A second emulator without stickiness plays every possible number of repeated frames; the one that
shows what the native one showed is what happened there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from ludus.envs.atari.resize import Resizer
from ludus.envs.atari.scalar import make_game
from ludus.envs.config import EnvConfig
from ludus.envs.make import make_envs

GAME = "breakout"  # before the ball is served only the paddle moves, and at once
PADDLE, MIDDLE = 72, 123  # where in RAM its place is, and the middle of its way


@dataclass(frozen=True)
class Guess:
    """A course of events that would have shown the same frames."""

    state: Any
    x: int  # of the paddle
    last: Any  # the action of the newest frame
    repeated: int = 0
    draws: int = 0  # frames on which chance could be seen at work


class Detective:
    """The past actions of one environment, inferred from its frames."""

    def __init__(self, ale: Any, skip: int, actions: list[Any]) -> None:
        self.ale, self.skip, self.actions = ale, skip, actions
        self.resize = Resizer(210, 160, 84, "area")
        self.guesses = [Guess(ale.cloneState(), MIDDLE, actions[0])]

    def next_action(self, left: int, right: int) -> int:
        """Towards the middle: at a wall all actions look alike."""
        return left if self.guesses[0].x > MIDDLE else right

    def see(self, action: int, frame: np.ndarray) -> None:
        new = self.actions[action]
        self.guesses = [
            after
            for guess in self.guesses
            for seen, after in self._courses(guess, new)
            if np.array_equal(seen, frame)
        ]
        assert self.guesses, "no number of repeated frames explains what was shown"
        assert len(self.guesses) < 20, "frames say too little"

    def _courses(self, guess: Guess, new: Any):
        """The old action goes on for so many frames, then the new one begins, and stays."""
        if guess.last == new:
            yield self._play(guess, [new] * self.skip, 0, 0)
            return
        for kept in range(self.skip + 1):
            presses = [guess.last] * kept + [new] * (self.skip - kept)
            yield self._play(guess, presses, kept, kept + (kept < self.skip))

    def _play(self, guess: Guess, presses: list[Any], repeated: int, draws: int):
        self.ale.restoreState(guess.state)
        screens = []
        for press in presses:
            self.ale.act(press)
            screens.append(self.ale.getScreenGrayscale())
        x = int(self.ale.getRAM()[PADDLE])
        counts = (guess.repeated + repeated, guess.draws + draws)
        after = Guess(self.ale.cloneState(), x, presses[-1], *counts)
        return self.resize(np.maximum(*screens[-2:])), after


@pytest.mark.accept(111)
@pytest.mark.parametrize(
    ("protocol", "share"), [("saber", 0.25), ("machado", 0.25), ("dqn-2015", 0)]
)
def test_actions_are_repeated_as_often_as_the_protocol_says(protocol, share):
    cfg = EnvConfig(id=GAME, protocol=protocol, num=4, groups=1, atari={"noops": 0})
    flags = cfg.atari
    assert cfg.native_atari and flags.sticky == share
    game = make_game(GAME, flags.model_copy(update={"sticky": 0.0}), {})
    game.reset(seed=1)
    ale = game.unwrapped.ale
    actions = list(ale.getLegalActionSet() if flags.full_actions else ale.getMinimalActionSet())
    left, right = ([a.name for a in actions].index(name) for name in ("LEFT", "RIGHT"))
    detectives = [Detective(ale, flags.skip, actions) for _ in range(cfg.num_envs)]
    with make_envs(cfg, seed=3) as envs:
        envs.reset()
        for _ in range(100):
            sent = [detective.next_action(left, right) for detective in detectives]
            envs.send(np.array(sent))
            for detective, action, frame in zip(detectives, sent, envs.recv().obs, strict=True):
                detective.see(action, frame)
    repeated = sum(detective.guesses[0].repeated for detective in detectives)
    draws = sum(detective.guesses[0].draws for detective in detectives)
    deviation = (share * (1 - share) / draws) ** 0.5
    assert draws >= 200 and abs(repeated / draws - share) <= 4 * deviation
