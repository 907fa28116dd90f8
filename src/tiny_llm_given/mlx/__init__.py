"""Given code of the MLX port."""
