"""Actors in separate processes, and the transport of chunks and weights."""
