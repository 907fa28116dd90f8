"""Where the weights of a model come from: whole files, parts of files, or random numbers."""
