"""Environments behind one adapter. The rest of Ludus sees EnvConfig, make_envs and EnvStep.

Imports nothing, so that looking up a game does not import torch.
"""

# Settings of how environments are executed, not of what is played.
EXECUTION_SETTINGS = ("workers", "groups", "threads", "timeout", "on_error", "render", "native")
