"""Small random spaces of each family."""
