"""Speculative decoding in the engine: its options, the draft model, and what a row of a step costs."""
