"""Settings of a run: merge the command line, files and presets to one frozen tree."""
