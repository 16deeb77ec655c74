"""Processes, threads, signals, and what a process may use of its machine. Nothing about
reinforcement learning."""
