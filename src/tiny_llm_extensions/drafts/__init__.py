"""Speculative decoding: a step checks tokens that were guessed (Day 4.3)."""
