"""Scores that can be trusted: protocols, evaluation, and later aggregates and reports."""
