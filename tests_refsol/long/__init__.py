"""Runs of minutes: random load on the engine and on the server, each answer checked."""
