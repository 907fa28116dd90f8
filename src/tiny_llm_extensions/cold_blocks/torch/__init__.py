"""For the PyTorch port."""
