"""The reference solution: one package a port, and `serving`, the policy that both share."""
