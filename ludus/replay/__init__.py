"""Replay: ring storage, views, samplers, replay ratio. `build_store` is the way in."""

from ludus.replay.store import Store, build_store

__all__ = ["Store", "build_store"]
