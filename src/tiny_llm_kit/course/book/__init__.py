"""Tools of the book: the link check and the capture of its screens. `pdm run book` is their command."""
