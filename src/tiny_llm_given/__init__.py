"""What is given to both solutions and needs their parts: array code by port, and the callers of kernels in C++.

It stands once, below the solutions: it imports the standard library, `tiny_llm_common` and, in the folder of a port,
its array library. What it needs of a solution it receives as an argument, and it keeps nothing of a solution at module
level or in a cache.
"""
