"""`pdm run demo`: long and short requests under three policies, one after the other, and the latencies under each."""
