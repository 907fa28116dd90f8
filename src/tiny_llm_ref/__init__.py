"""The serving engine of the course: one package a port, and `serving`, the policy that both share."""
