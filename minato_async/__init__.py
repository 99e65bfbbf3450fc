"""A drop-in replacement for torch's DataLoader that never lets a slow sample hold up a batch."""

from minato_async.checkpoint import SampleCancelled, checkpoint
from minato_async.loader import MinatoLoader
from minato_async.patching import Patch, patch
from minato_async.per_worker import per_worker
from minato_async.replicas.sharing import share
from minato_async.resuming.ranks import merge_states
from minato_async.scheduling.schedulers import Reading, WorkerScheduler
from minato_async.seeding.sample_rng import SampleRng, sample_rng
from minato_async.stats import Stats, StepCosts

DataLoader = MinatoLoader

__version__ = "0.1.0"
__all__ = [
    "DataLoader",
    "MinatoLoader",
    "Patch",
    "Reading",
    "SampleCancelled",
    "SampleRng",
    "Stats",
    "StepCosts",
    "WorkerScheduler",
    "checkpoint",
    "merge_states",
    "patch",
    "per_worker",
    "sample_rng",
    "share",
]
