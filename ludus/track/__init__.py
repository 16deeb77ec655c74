"""What a run leaves behind: its directory, metrics, checkpoints, terminal and callbacks.

Nothing is imported here, so that listing runs never loads torch. Not the place that decides
when to write: the run does.
"""
