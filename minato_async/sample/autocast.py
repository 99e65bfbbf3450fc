"""`torch.autocast` of the thread that starts an epoch, for the threads that load it."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Autocast:
    """Which devices' operators are cast, and to what: in torch a setting of each thread."""

    #: Kind of device, whether its operators are cast, to which dtype.
    devices: tuple[tuple[str, bool, torch.dtype], ...]

    @classmethod
    def of_this_thread(cls) -> Autocast:
        kinds = ["cpu"]
        if (accelerator := torch.accelerator.current_accelerator()) is not None:
            kinds.append(accelerator.type)
        return cls(
            tuple(
                (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
                for kind in kinds
            )
        )

    def apply(self) -> None:
        """Let the calling thread, a worker's, have these settings."""
        for kind, enabled, dtype in self.devices:
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, dtype)
        # Copies of weights in the lower precision are kept until the block ends, and here no
        # block does: they would outlive the weights that they were made of.
        torch.set_autocast_cache_enabled(not any(enabled for _, enabled, _ in self.devices))
