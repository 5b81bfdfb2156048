"""Runs: their folders, stored weights, and the processes that share the work."""
