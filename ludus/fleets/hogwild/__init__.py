"""Hogwild: worker processes that update one shared network (Mnih et al. 2016)."""
