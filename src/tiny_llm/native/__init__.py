"""Kernels in C++ (Week 4): a file of C++ for each, and beside it the Python that checks arguments and calls it."""
