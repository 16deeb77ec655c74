"""C code for replay on a CPU, compiled at first use, and its numpy twin."""
