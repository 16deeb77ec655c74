"""Measurements that a user can repeat on their own machine."""
