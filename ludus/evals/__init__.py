"""Scores that can be trusted: protocols, whole episodes, films."""
