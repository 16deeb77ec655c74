"""One file per family of algorithms. Nothing here knows a process, a logger or a replay object."""
