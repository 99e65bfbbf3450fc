"""Run once for each rank: what Accelerate delivers with torch's loader inside, and with ours."""

from __future__ import annotations

import json
from typing import Any

import accelerate
import torch
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader

from minato_async import MinatoLoader
from minato_async.integrations.accelerate import prepare, skip_first_batches
from tests.frameworks.support import Numbers, Stream, values

#: For each case: how Accelerate is configured, and the loader's own arguments.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "sharded": ({}, {}),
    "shuffled": ({}, {"shuffle": True}),
    "seedable sampler": ({"use_seedable_sampler": True}, {"shuffle": True}),
    "split_batches": ({"split_batches": True}, {}),
    "uneven batches": ({"even_batches": False}, {}),
    "drop_last": ({}, {"drop_last": True}),
    "dispatch_batches": ({"dispatch_batches": True}, {}),
    "dispatch_batches and split_batches": (
        {"dispatch_batches": True, "split_batches": True},
        # Nothing but this tells ours to keep the order: the sampler is torch's own, unseeded.
        {"shuffle": True, "in_order": True},
    ),
    "persistent_workers": ({}, {"shuffle": True, "persistent_workers": True}),
    "processes": ({}, {"shuffle": True, "executor": "process", "persistent_workers": True}),
    "processes, dispatch_batches": ({"dispatch_batches": True}, {"executor": "process"}),
    "processes, iterable": ({"dispatch_batches": False}, {"stream": True, "executor": "process"}),
    "iterable": ({"dispatch_batches": False}, {"stream": True}),
    "iterable, dispatched": ({}, {"stream": True}),
}


def run(config: dict[str, Any], arguments: dict[str, Any], *, ours: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    accelerator = accelerate.Accelerator(
        cpu=True, dataloader_config=DataLoaderConfiguration(**config)
    )
    arguments = {"batch_size": 4, **arguments}
    executor = arguments.pop("executor", "thread")
    # 18 samples: neither whole batches nor a whole number of them for each rank.
    dataset: Any = Stream(18) if arguments.pop("stream", False) else Numbers(18)
    if ours:
        # One worker, for an iterable dataset is read once by each.
        loader = prepare(
            accelerator, MinatoLoader(dataset, num_workers=1, executor=executor, **arguments)
        )
        skipping = skip_first_batches(loader, 1)
    else:
        arguments.pop("persistent_workers", None)
        loader = accelerator.prepare(DataLoader(dataset, **arguments))
        skipping = accelerator.skip_first_batches(loader, 1)
    epochs = [values(loader) for _ in range(2)]
    gathered = []
    if accelerator.even_batches:  # every rank has to have something to gather
        gathered = [accelerator.gather_for_metrics(batch)[:, 0].tolist() for batch in loader]
    report = {
        "length": len(loader),
        "epochs": epochs,
        "gathered": gathered,
        "skipping": values(skipping),
        "classes": [type(part.base_dataloader).__name__ for part in (loader, skipping)],
    }
    accelerator.free_memory()
    return report


def main() -> None:
    answers = {
        name: {kind: run(*case, ours=kind == "ours") for kind in ("torch", "ours")}
        for name, case in CASES.items()
    }
    torch.distributed.destroy_process_group()
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
