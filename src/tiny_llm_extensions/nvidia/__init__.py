"""What runs on an NVIDIA GPU in few kernels: attention over pages, joined products, graphs of decodes."""
