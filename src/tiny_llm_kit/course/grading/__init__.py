"""How the day tests run and what they say: the pytest plugin, and the references that screens use too."""
