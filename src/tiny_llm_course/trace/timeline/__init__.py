"""A timeline of a scheduler's events, drawn in a terminal, as a page, and as a Chrome trace."""
