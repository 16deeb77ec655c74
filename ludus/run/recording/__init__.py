"""What a run records and reports while it trains."""
