"""The machinery of the course: stubs cut from the reference, and the checks that keep both honest."""
