"""Models and engines without arithmetic, for the day tests and the screens."""
