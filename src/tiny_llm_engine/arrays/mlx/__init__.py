"""What an engine keeps, in MLX."""
