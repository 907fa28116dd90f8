"""Stages of a pipeline over time: what a run has recorded, what is predicted, and the chart of both."""
