from typing import Self

import numpy as np
from numpy.typing import NDArray

class FilePass:
    def __new__(cls, files: NDArray[np.void]) -> Self: ...
