"""What the course's authors run: the wrong solutions, the prefix check, the stubs, and all tests."""
