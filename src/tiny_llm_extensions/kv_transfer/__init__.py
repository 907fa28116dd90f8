"""Keys and values of a prompt from another engine, which computes it at the same time: prefill elsewhere (Day 4.6)."""
