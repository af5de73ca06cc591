from typing import Self

class DriverContext:
    def __new__(cls) -> Self: ...

class DriverEvent:
    def __new__(cls, context: DriverContext) -> Self: ...
