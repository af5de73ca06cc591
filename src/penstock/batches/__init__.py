"""Samples to the memory of batches: layouts, segments, labels and positions."""
