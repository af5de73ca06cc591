"""The machine: memory by its address, and the system's calls, as kernels use them."""
