"""Products and layers by kernels in C++, where a machine has a compiler (Day 4.1)."""
