"""Given parts of a serving engine: its loop, admission, policies that no day teaches, drafts and a router's numbers.

They work on the solution's requests, blocks and functions, which they get as arguments.
"""
