"""Read runs, group and compare them: scores, aggregates, intervals, references, warnings."""
