"""Whatever exists for speed only."""
