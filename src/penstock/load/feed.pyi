from typing import Any, Self

import torch

from penstock.batches.layout import BatchLayout
from penstock.load.batch_memory import BatchMemory
from penstock.load.widening import DeviceWidening

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
