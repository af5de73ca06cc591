from typing import Any, Self

import torch

from millstream.batches.layout import BatchLayout
from millstream.load.batch_memory import BatchMemory
from millstream.load.widening import DeviceWidening

AHEAD: int

class DeviceShape:
    def __new__(cls, widening: DeviceWidening) -> Self: ...

class Slab:
    pass

class Upload:
    pass

class CudaFeed:
    @property
    def ahead(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...
    def __new__(
        cls, layout: BatchLayout, device: torch.device, *, static_addresses: bool = False
    ) -> Self: ...
    def check_process(self) -> None: ...
    def upload(self, memory: BatchMemory, rows: int) -> Upload: ...
    def hand_out(self, upload: Upload) -> dict[str, Any]: ...
