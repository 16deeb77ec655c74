"""The learner: nets, optimizer, and how updates run."""
