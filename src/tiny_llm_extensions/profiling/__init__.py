"""What an engine measures before its first request: memory of the largest step, and the cost of steps."""
