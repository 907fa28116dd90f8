"""What a scheduler did and when: recorded from its events, drawn in a terminal, as a page, and as a Chrome trace."""
