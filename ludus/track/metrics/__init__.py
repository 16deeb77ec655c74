"""Metrics of a run: its own files, TensorBoard and trackers."""
