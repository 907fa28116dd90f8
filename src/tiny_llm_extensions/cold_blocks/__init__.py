"""Blocks outside the pool: in the host's memory, and in a folder (Day 4.5)."""
