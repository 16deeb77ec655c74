"""Pictures and windows of environments while they are stepped."""
