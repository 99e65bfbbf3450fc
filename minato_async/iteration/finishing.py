"""What is done with a batch between collating and delivering: the work of the engine's stage, or,
without workers, of the consumer's thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader

from minato_async.engine.batch import Batch
from minato_async.sample.openmp import use_one_thread_here
from minato_async.sample.pinning import pin, pins_memory


class Finishing:
    """Receives a batch from its executor and pins it."""

    def __init__(self, receive: Callable[[Any], Any]) -> None:
        self._receive = receive
        self.doing = ""

    def __call__(self, batch: Batch, content: Any) -> Any:
        use_one_thread_here()
        self.doing = "receiving"
        content = self._receive(content)
        self.doing = "pinning"
        return pin(content)


def finishing(loader: DataLoader[Any], receive: Callable[[Any], Any]) -> Finishing | None:
    """What is to be done with the batches of `loader`, which the executor hands over by `receive`;
    None: that alone, which is for the consumer."""
    return Finishing(receive) if pins_memory(loader) else None


def finish_here(loader: DataLoader[Any]) -> Callable[[Any], Any]:
    """What the consumer's thread does with each batch that it has collated."""
    return pin if pins_memory(loader) else _as_it_is


def _as_it_is(batch: Any) -> Any:
    return batch
