"""A run's settings: from what was typed, files and presets to one frozen tree."""
