"""What turns an algorithm, an environment and a topology into a run. Knows no algorithm by name."""
