"""From arrays to steps: backends, loading, runners, `LLM` and its engine."""
