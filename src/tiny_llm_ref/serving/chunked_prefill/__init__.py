"""The scheduler of Week 2: a prompt in chunks, a place among the slots, one token for each slot.

Day 2.6 fills the request and the batch, Day 2.7 the rest: chunks and their sizes, the scheduler,
its metrics, and whose turn it is.
"""
