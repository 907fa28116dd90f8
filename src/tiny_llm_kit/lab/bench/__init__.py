"""Benchmarks against peers: the same weights and threads, in one process, interleaved, with provenance."""
