"""Schedulers in virtual time: what a step costs, and models that only take time."""
