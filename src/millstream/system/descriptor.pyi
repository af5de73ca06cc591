from typing import Self

class OwnedDescriptor:
    number: int
    def __new__(cls, number: int) -> Self: ...
