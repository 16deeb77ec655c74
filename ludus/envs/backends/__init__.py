"""What steps environments: one after another, in worker processes, or vectorised."""
