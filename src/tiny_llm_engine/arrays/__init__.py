"""The arrays that an engine keeps: keys and values in pages, masks, tables of RoPE; in MLX and in PyTorch."""
