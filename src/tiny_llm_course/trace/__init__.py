"""Workloads, the loop that serves them, and what is recorded and drawn of a run."""
