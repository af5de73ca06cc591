"""Samples to segments, outside the GIL."""

from typing import NamedTuple

import numba
import numpy as np
from numba import types

from penstock.jit import helper, kernel
from penstock.read.kernels import COLUMN, LENGTH, ROW, START


class WindowState(NamedTuple):
    """The windows view as kernels see it."""

    stride: np.int64
    width: np.int64


WINDOW_TYPE = numba.typeof(WindowState(np.int64(1), np.int64(1)))


@helper
def fill_window_segments(window, samples, segments):
    for k in range(samples.size):
        segments[k, ROW] = k
        segments[k, COLUMN] = 0
        segments[k, START] = samples[k] * window.stride
        segments[k, LENGTH] = window.width


@kernel(WINDOW_TYPE, types.int64[::1], types.int64[:, ::1])
def window_segments(window, samples, segments):
    fill_window_segments(window, samples, segments)
