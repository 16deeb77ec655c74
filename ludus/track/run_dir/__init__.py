"""The run directory and the files that describe a run."""
