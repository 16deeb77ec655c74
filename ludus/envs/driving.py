"""Settings of an environment that say how it is driven, not what is played. A list of names alone:
who reads the files of runs need not wait for what steps them."""

from __future__ import annotations

DRIVING = ("workers", "groups", "threads", "timeout", "on_error", "render", "native")
