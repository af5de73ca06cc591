from typing import Self

from penstock.text.tokenizers.tokenizer import Ids

class IdBuffers:
    def __new__(cls) -> Self: ...
    def lend(self, num_ids: int) -> Ids: ...
