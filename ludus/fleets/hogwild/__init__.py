"""Hogwild: workers that update one shared net (Mnih et al. 2016)."""
