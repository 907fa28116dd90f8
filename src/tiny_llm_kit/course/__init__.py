"""Stubs, which are cut from the reference, and the checks that compare the two."""
