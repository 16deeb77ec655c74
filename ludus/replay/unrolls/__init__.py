"""Unrolls of fixed length: joined from chunks, queued or replayed."""
