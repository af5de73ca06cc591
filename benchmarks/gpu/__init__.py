"""Timings on a CUDA device: `python -m benchmarks.gpu`."""
