"""Fleets: where collectors live."""
