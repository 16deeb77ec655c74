"""Replay roles as Ray actors, on this machine or on another node."""
