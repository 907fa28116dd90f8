"""The day tests: a pytest plugin that runs and reports them, and references that screens use too."""
