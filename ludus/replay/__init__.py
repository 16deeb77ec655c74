"""Replay: ring storage, views, samplers, pacing. `build_store` is the way in."""

from ludus.replay.replay_store import Store, build_store

__all__ = ["Store", "build_store"]
