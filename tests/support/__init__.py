"""Oracles and measurements that the tests share, and nothing else uses."""
