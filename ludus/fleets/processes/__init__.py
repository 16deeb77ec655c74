"""Actors in processes of their own, and what travels between them and the learner."""
