"""Day 4.5: blocks that no request runs on, kept by levels instead of dropped; integers only.

`cold_blocks` says which block goes where, and `swap_or_compute` which ones come back. The copies are made before the
step that they were planned in, by the engine.
"""
