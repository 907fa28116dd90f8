"""The HTTP side of the server: OpenAI's requests and answers around a solution's `EngineLoop`."""
