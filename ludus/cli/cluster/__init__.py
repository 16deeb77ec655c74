"""Verbs for runs on several machines."""
