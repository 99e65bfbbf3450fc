"""`device_transform`: what the user has done with each batch on the device."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from typing import Any

import torch

from minato_async.sample.autocast import Autocast
from minato_async.seeding.epoch_seeds import thread_streams


class DeviceTransform:
    """The user's function, for the thread that prefetches.

    It runs with grad mode, autocast and context variables of the thread that starts the epoch. What
    it draws from `random`, `numpy.random` and torch, on whatever device, depends on the seed that
    it is called with alone, if batches have random state of their own (`isolated`).
    """

    def __init__(self, function: Callable[[Any], Any], isolated: bool) -> None:
        self._function = function
        self._isolated = isolated
        self._context = copy_context()
        self._grad = torch.is_grad_enabled()
        self._autocast = Autocast.of_this_thread()

    def __call__(self, seed: Callable[[], int], content: Any) -> Any:
        """The batch that the user makes of `content`; `seed` is asked if it draws."""
        with torch.set_grad_enabled(self._grad), thread_streams(self._isolated) as streams:
            self._autocast.apply()
            streams.begin(lambda _: seed())
            streams.ticket = self
            return self._context.copy().run(self._function, content)
