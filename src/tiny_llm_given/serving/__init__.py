"""Given parts of a serving engine: its loop, admission, the policies that are no lesson, drafts and a router's numbers.

They work on the solution's requests, blocks and functions, which they get as arguments.
"""
