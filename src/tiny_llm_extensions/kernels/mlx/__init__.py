"""For the MLX port."""
