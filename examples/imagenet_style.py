"""Trains an image classifier, written as such scripts are written for torch's DataLoader.

    python -m examples.imagenet_style                       # with MinatoLoader
    python -m examples.imagenet_style --loader torch        # with torch's
    torchrun --nproc-per-node 2 -m examples.imagenet_style  # on two ranks

The images are made up, so it needs no download and runs in seconds on a CPU. Which loader it is
changes nothing but the import: for one seed the losses are the same to the last bit.

With `--checkpoint FILE --checkpoint-steps 5` it saves in the middle of epochs, too. Killed, it goes
on from there with `--resume FILE`, and has the losses that it would have had. That takes a loader
with a state: torch's would begin the epoch again.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset
from torch.utils.data.distributed import DistributedSampler

MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)

Transform = Callable[[Tensor], Tensor]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--loader", choices=["torch", "minato"], default="minato")
    parser.add_argument("-j", "--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("-b", "--batch-size", type=int, default=16, help="on all ranks together")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--classes", type=int, default=4)
    parser.add_argument("--size", type=int, default=32, help="of an image, in pixels")
    parser.add_argument("--print-freq", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", type=Path, help="where to save after every epoch")
    parser.add_argument("--checkpoint-steps", type=int, help="and after so many steps")
    parser.add_argument("--resume", type=Path, help="a checkpoint to go on from")
    return parser.parse_args()


def import_data_loader(name: str) -> Any:
    """The import that changes."""
    if name == "minato":
        from minato_async import DataLoader
    else:
        from torch.utils.data import DataLoader  # type: ignore[assignment]
    return DataLoader


# Data


class SyntheticImages(Dataset[tuple[Tensor, int]]):
    """Image i is a coarse pattern that tells its class, under noise that is its own."""

    def __init__(self, args: argparse.Namespace, transform: Transform, *, train: bool) -> None:
        self.images: int = args.images if train else args.images // 4
        self.classes, self.size = args.classes, args.size
        self.transform = transform
        self.first_seed = 0 if train else 10**6

    def __len__(self) -> int:
        return self.images

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        label = index % self.classes
        pattern = np.random.default_rng(label).integers(0, 200, (3, 4, 4))
        enlarged = np.kron(pattern, np.ones((1, self.size // 4, self.size // 4), int))
        noise = np.random.default_rng(self.first_seed + index).integers(0, 56, enlarged.shape)
        image = (enlarged + noise).astype(np.uint8)
        return self.transform(torch.from_numpy(image)), label


def crop_and_normalize(image: Tensor) -> Tensor:
    """The middle of the image, as floats: deterministic, unlike what one would train with."""
    edge = image.shape[-1] // 8
    middle = image[:, edge:-edge, edge:-edge].float() / 255
    return (middle - MEAN) / STD


def collate(samples: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    images = torch.stack([image for image, _ in samples])
    labels = torch.tensor([label for _, label in samples])
    return images.contiguous(memory_format=torch.channels_last), labels


def seed_worker(worker_id: int) -> None:
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)
    random.seed(seed)


def make_loader(
    args: argparse.Namespace, world_size: int, *, train: bool
) -> tuple[Any, DistributedSampler[Any] | None]:
    dataset = SyntheticImages(args, crop_and_normalize, train=train)
    sampler: DistributedSampler[Any] | None = None
    if world_size > 1:
        sampler = DistributedSampler(dataset, shuffle=train, seed=args.seed, drop_last=train)
    loader = import_data_loader(args.loader)(
        dataset,
        batch_size=args.batch_size // world_size,
        shuffle=train and sampler is None,
        sampler=sampler,
        num_workers=args.workers,
        collate_fn=collate,
        pin_memory=True,
        drop_last=train,
        worker_init_fn=seed_worker,
        persistent_workers=args.workers > 0,
        # torch's default. Left out, MinatoLoader would deliver a shuffled epoch's ready samples
        # first: faster, but then no two runs have the same batches.
        in_order=True,
    )
    return loader, sampler


# Training


def make_model(classes: int) -> nn.Module:
    def block(inputs: int, outputs: int) -> nn.Module:
        convolution = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())

    return nn.Sequential(
        block(3, 8), block(8, 16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2),
        nn.Linear(16, classes),
    )  # fmt: skip


def train(
    args: argparse.Namespace,
    loader: Any,
    model: nn.Module,
    criterion: nn.Module,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    epoch: int,
    losses: list[float],
    after_step: Callable[[], None],
) -> None:
    model.train()
    waited, end = 0.0, time.perf_counter()
    for step, (images, labels) in enumerate(loader):
        waited += time.perf_counter() - end
        images = images.to(device, non_blocking=True)
        labels = labels.to(device, non_blocking=True)
        loss = criterion(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % args.print_freq == 0 and is_first_rank():
            print(f"epoch {epoch} [{step}/{len(loader)}] loss {losses[-1]:.4f} wait {waited:.3f} s")
        after_step()
        end = time.perf_counter()


@torch.no_grad()
def validate(loader: Any, model: nn.Module, device: torch.device) -> float:
    model.eval()
    right_and_all = torch.zeros(2, device=device)
    for images, labels in loader:
        guesses = model(images.to(device, non_blocking=True)).argmax(1)
        labels = labels.to(device, non_blocking=True)
        right_and_all += torch.tensor([(guesses == labels).sum(), len(labels)], device=device)
    if dist.is_initialized():
        dist.all_reduce(right_and_all)
    return (right_and_all[0] / right_and_all[1]).item()


def save(state: dict[str, Any], path: Path) -> None:
    """Whenever it is killed, there is a whole checkpoint."""
    draft = path.with_suffix(".draft")
    torch.save(state, draft)
    draft.replace(path)


def is_first_rank() -> bool:
    return not dist.is_initialized() or dist.get_rank() == 0


def main() -> None:
    args = parse_arguments()
    torch.manual_seed(args.seed)
    torch.backends.cudnn.deterministic = True
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if world_size > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    train_loader, train_sampler = make_loader(args, world_size, train=True)
    val_loader, _ = make_loader(args, world_size, train=False)

    model = make_model(args.classes).to(device)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.1)
    criterion = nn.CrossEntropyLoss()
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    if args.loader == "minato":
        # In order, all ranks are equally far: the first one's state does for all.
        parts |= {"train_loader": train_loader, "val_loader": val_loader}
    epoch, losses, accuracy = 0, [], 0.0
    random_state = torch.get_rng_state()
    if args.resume:
        state = torch.load(args.resume, map_location="cpu")
        epoch, losses, accuracy = state["epoch"], state["losses"], state["accuracy"]
        random_state = state["random_state"]
        for name in parts.keys() & state.keys():
            parts[name].load_state_dict(state[name])
    # The bare model goes into checkpoints, so that one rank can load what two have trained.
    trained = DistributedDataParallel(model) if world_size > 1 else model
    # Of shuffling and dropout. Each rank has the same.
    torch.set_rng_state(random_state)

    def save_all() -> None:
        if args.checkpoint and is_first_rank():
            state = {name: part.state_dict() for name, part in parts.items()}
            state |= {"epoch": epoch, "losses": losses, "accuracy": accuracy}
            save(state | {"random_state": torch.get_rng_state()}, args.checkpoint)

    def after_step() -> None:
        if args.checkpoint_steps and len(losses) % args.checkpoint_steps == 0:
            save_all()

    while epoch < args.epochs:
        if train_sampler is not None:
            train_sampler.set_epoch(epoch)
        # What is left of the epoch, if it was begun before.
        train(args, train_loader, trained, criterion, optimizer, device, epoch, losses, after_step)
        accuracy = validate(val_loader, trained, device)
        scheduler.step()
        if is_first_rank():
            print(f"epoch {epoch}: accuracy {accuracy:.3f}")
        epoch += 1
        save_all()
    if world_size > 1:
        # Not at once after the last reduction: gloo may still be freeing its tensors, and torch's
        # group cannot be ended while it waits for the GIL to do so.
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
