"""Benchmarks of the engine and their baselines. Run them from the root: `pdm run bench-…`."""
