"""A step is planned while the one before it computes (Day 4.4)."""
