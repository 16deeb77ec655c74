"""Fleets: run the collectors in this process, in actor processes or in hogwild workers."""
