"""Wheels for Linux on x86-64 and aarch64: built on one machine, inspected, installed and tested.

`make wheels` runs this. Both are compiled by the PyPI package ziglang against glibc 2.17, and use
Python's limited API: one wheel serves Python 3.11 and later.

- `inspection`: what can be read off a wheel, whatever machine it is for
- `trial`: tests run against a wheel that is installed in an empty environment
"""
