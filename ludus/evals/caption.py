"""Frames for videos and windows: enlarged pictures with a line of text below them."""

from __future__ import annotations

import os
from typing import Any, TypeAlias

import numpy as np

from ludus.evals.episode_stream import Moment

Array: TypeAlias = np.ndarray[Any, Any]
SMALL = 320  # pixels: pictures lower than this are enlarged
MARGIN = 6
PAPER, INK = (24, 26, 30), (236, 238, 240)


def caption_of(moment: Moment) -> str:
    value = "" if moment.value is None else f"   value {moment.value:.2f}"
    ended = "" if moment.ended is None else f"   {moment.ended.end}"
    return f"score {moment.score:g}   step {moment.step}{value}{ended}"


class Captions:
    """Turns moments into frames of one size, both sides even as video codecs want them."""

    def __init__(self) -> None:
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # a greeting on standard output
        import pygame

        pygame.font.init()
        self._pygame = pygame
        self._fonts: dict[int, Any] = {}

    def frame(self, moment: Moment) -> Array:
        picture = np.asarray(moment.picture, np.uint8)
        factor = max(1, -(-SMALL // picture.shape[0]))
        picture = picture.repeat(factor, 0).repeat(factor, 1)
        height, width = picture.shape[0] // 2 * 2, max(2, picture.shape[1] // 2 * 2)
        line = self._line(caption_of(moment), width)
        return np.ascontiguousarray(np.concatenate((picture[:height, :width], line)))

    def _line(self, text: str, width: int) -> Array:
        """[strip, width, 3]; a text that is too long is cut at the right."""
        size = 22 if width >= 440 else 16
        font = self._fonts.setdefault(size, self._pygame.font.Font(None, size))
        strip = np.empty((size + 2 * MARGIN, width, 3), np.uint8)
        strip[:] = PAPER
        letters = self._pygame.surfarray.array3d(font.render(text, True, INK, PAPER)).swapaxes(0, 1)
        letters = letters[: size + MARGIN, : width - MARGIN]
        strip[MARGIN : MARGIN + letters.shape[0], MARGIN : MARGIN + letters.shape[1]] = letters
        return strip
