"""Build and run training from an algorithm, an environment and a fleet. Names no algorithm."""
