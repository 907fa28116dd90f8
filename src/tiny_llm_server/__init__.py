"""The OpenAI-compatible server around the engine of Week 3."""
