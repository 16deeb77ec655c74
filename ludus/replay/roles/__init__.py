"""Replay as a role of its own: a store in another process, and the learner's side of it."""
