"""One model on several devices: which rank holds which part of it, in plain integers (Day 3.7).

A rank is one of the processes that compute a model together, each on its own device. `shards` divides the matrices
or the layers among them, and `fill_stages` keeps all stages busy.
"""
