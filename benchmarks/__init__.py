"""Timings: `make bench`."""
