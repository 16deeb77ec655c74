"""Records and reports of a run while it trains."""
