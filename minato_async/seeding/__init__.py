"""Per-sample random state: what a sample draws depends on its seed and on nothing else."""

from minato_async.seeding.dispatch import install
from minato_async.seeding.keys import UnstableKeyError, epoch_seed, sample_seed, seed_in_epoch
from minato_async.seeding.streams import SampleState, SampleStreams
from minato_async.seeding.torch_hooks import RandomStateWarning

__all__ = [
    "RandomStateWarning",
    "SampleState",
    "SampleStreams",
    "UnstableKeyError",
    "epoch_seed",
    "install",
    "sample_seed",
    "seed_in_epoch",
]
