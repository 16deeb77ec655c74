"""Outputs of a run: run directory, metrics, checkpoints, terminal display and callbacks.

This package imports nothing at the top level, so that listing runs never loads torch. The run
decides when to write; this package knows how.
"""
