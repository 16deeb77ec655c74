"""Checkpoints: format, writer, reader."""
