"""Speculative decoding: a step that checks tokens which were guessed instead of computing one token: Day 4.3.

A proposer guesses the next tokens of a request, its drafts. One call of the model computes them behind the last known
token, and draws a token after each. As far as the draws equal the drafts, the drafts are the answer.
"""
