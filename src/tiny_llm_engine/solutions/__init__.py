"""A solution and a backend, found by name: a `Port`, and the types of what it gives."""
