"""What scores mean: aggregates, intervals, published references, and which runs compare."""
