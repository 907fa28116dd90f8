"""The grader: it runs what somebody hands in, in a clean copy of the course that has no reference."""
