"""Tools for the authors of the book: screens, links, drawings, lengths."""
