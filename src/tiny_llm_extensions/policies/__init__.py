"""Other plans of a step, and what limits its prompts (Days 3.4 and 3.5)."""
