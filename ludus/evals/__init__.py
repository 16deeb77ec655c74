"""Evaluation of trained agents: protocols, complete episodes, videos."""
