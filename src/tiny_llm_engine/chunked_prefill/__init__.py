"""What the lessons of Week 2 are given: a runner with slots, the sizes of chunks, whose turn it is."""
