"""A batch of prompts: the job, and its views on a terminal."""
