"""Child processes, signals and resource limits. Nothing here is about reinforcement learning."""
