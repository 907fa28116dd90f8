"""Which replica gets a request: by the tokens that each still has to compute, and the prefixes in its cache."""
