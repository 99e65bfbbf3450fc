"""Run once for each rank: DistributedDataParallel on gloo, with torch's loader and with ours."""

from __future__ import annotations

import json
import random
import warnings
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from minato_async import MinatoLoader
from minato_async.options import check_options
from minato_async.scheduling.cpus import cpu_share

#: 17 samples for two ranks: the sampler makes them even, or drops one. Batches of 3 leave a rest.
LENGTH, BATCH_SIZE, EPOCHS, SEED = 17, 3, 2, 7

#: For each case: arguments of the sampler, and of our loader.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "threads": ({}, {"executor": "thread"}),
    "threads, persistent": ({}, {"executor": "thread", "persistent_workers": True}),
    "processes": ({}, {"executor": "process"}),
    "sampler drops": ({"drop_last": True}, {"executor": "thread"}),
    "loader drops": ({}, {"executor": "thread", "drop_last": True}),
    "unshuffled": ({"shuffle": False}, {"executor": "thread"}),
}


class Augmented(Dataset[Any]):
    """(index, noise): the noise is drawn from all three generators."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        draws = [random.random(), float(numpy.random.rand()), float(torch.rand(()))]
        return index, torch.tensor(draws)


def train(make_loader: Any, sampler: Any) -> dict[str, Any]:
    """Indices, noise and the model's weights after `EPOCHS` epochs."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(SEED)
    loader = make_loader(sampler)
    epochs: list[Any] = []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        epochs.append([])
        # Where a rank has fewer batches than the others, its model keeps in step with theirs.
        with model.join():
            for index, noise in loader:
                loss = model(index[:, None].float() / LENGTH).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                epochs[-1].append((index.tolist(), noise.tolist()))
    return {
        "batches": [[indices for indices, _ in epoch] for epoch in epochs],
        "noise": [
            [[index, noise] for batch in epoch for index, noise in zip(*batch, strict=True)]
            for epoch in epochs
        ],
        "weights": [value.item() for value in model.parameters()],
    }


class Uneven:
    """The first rank has all samples but three: no sampler makes them even."""

    def __init__(self) -> None:
        whole = list(range(LENGTH))
        self.indices = whole[:-3] if dist.get_rank() == 0 else whole[-3:]

    def __iter__(self) -> Any:
        return iter(self.indices)

    def __len__(self) -> int:
        return len(self.indices)

    def set_epoch(self, epoch: int) -> None:
        """The same in every epoch."""


def both(make_sampler: Any, sampler_options: Any, options: dict[str, Any]) -> dict[str, Any]:
    """What torch's loader and ours give this rank."""
    dropping = {"drop_last": options["drop_last"]} if "drop_last" in options else {}
    dataset = Augmented()
    return {
        "torch": train(
            lambda sampler: DataLoader(dataset, BATCH_SIZE, sampler=sampler, **dropping),
            make_sampler(**sampler_options),
        ),
        "ours": train(
            lambda sampler: MinatoLoader(
                dataset, BATCH_SIZE, sampler=sampler, num_workers=2, **options
            ),
            make_sampler(**sampler_options),
        ),
    }


def main() -> None:
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    result: dict[str, Any] = {
        name: both(lambda **given: DistributedSampler(Augmented(), **given), *arguments)
        for name, arguments in CASES.items()
    }
    result["uneven"] = both(Uneven, {}, {"executor": "thread"})
    loader = MinatoLoader(Augmented(), num_workers=1, scheduler="throughput")
    result["cpus"] = [cpu_share(), check_options(loader).max_workers]
    print(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
