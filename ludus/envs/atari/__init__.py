"""Atari 2600 games: names, protocols, the native vector emulator and a scalar one."""
