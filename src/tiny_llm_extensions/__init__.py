"""What is put on the engine from outside; without it the same engine runs, slower or with less.

`open_engine` is the one place that assembles: a list that one reads. `LLM` stands above it.
"""
