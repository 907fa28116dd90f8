"""Hybrid batches, the scheduler of Week 3: one budget of tokens a step for chunks and decodes.

Day 3.3 fills the request and what packs a plan (`sequence`), and the plan itself
(`hybrid_scheduler`). The loop of a step, admission and options are given; `padded_budget` is a task
of Day 3.4.
"""
