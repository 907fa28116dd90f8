"""Experiments in the simulator, each beside what its paper has published."""
