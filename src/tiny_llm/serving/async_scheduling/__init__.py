"""Asynchronous scheduling: a step is planned while the one before it computes: Day 4.4.

The token that the step before will draw is not known yet. It is planned as a placeholder, which the device fills in.
"""
