"""What a measuring child is told, and what it answers: one JSON object a line."""

from dataclasses import asdict, dataclass
from typing import Any

from minato_async.cli.demo.training import Seen


@dataclass(frozen=True)
class Task:
    """One training, given to a child on its standard input.

    Attributes:
        loader: Key of `options.LOADERS`.
        paths: The photos' files.
        workers: Workers of the loader.
        epochs: Epochs to train.
        batch_size: Samples in a batch.
        samples: Samples in an epoch.
        seed: Seed of everything random.
    """

    loader: str
    paths: tuple[str, ...]
    workers: int
    epochs: int
    batch_size: int
    samples: int
    seed: int


@dataclass(frozen=True)
class Result:
    """What a child answers at its end.

    Attributes:
        seen: What the training saw.
        gil: State of the GIL after the training, as `machine.gil_state` gives it.
        device: Where the network was trained.
        threads: Threads that torch used for one operation of the training.
    """

    seen: Seen
    gil: str
    device: str
    threads: int

    def as_json(self) -> dict[str, Any]:
        """Return the fields in a form that JSON can carry."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "Result":
        """Take apart what `as_json` gave.

        Args:
            fields: The fields by name.
        """
        return cls(**{**fields, "seen": Seen(**fields["seen"])})
