"""Two ranks of torch's DistributedDataParallel, real processes on gloo, each with a loader of its
own: beside torch's loader, and beside one process that loads everything."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch.utils.data import SequentialSampler

from minato_async import MinatoLoader
from minato_async.options import check_options
from minato_async.scheduling.cpus import cpu_share
from tests.frameworks.ddp_ranks import BATCH_SIZE, CASES, EPOCHS, LENGTH, SEED, Augmented
from tests.frameworks.support import run_ranks

RANKS = 2


@pytest.fixture(scope="module")
def ranks() -> Any:
    return [
        json.loads(printed) for printed in run_ranks(["-m", "tests.frameworks.ddp_ranks"], RANKS)
    ]


@pytest.mark.parametrize("case", [*CASES, "uneven"])
@pytest.mark.parametrize("rank", range(RANKS))
def test_a_rank_gets_torchs_batches_and_trains_alike(ranks: Any, rank: int, case: str) -> None:
    stock, ours = (ranks[rank][case][kind] for kind in ("torch", "ours"))
    assert stock["batches"][0]
    assert ours["batches"] == stock["batches"]
    assert ours["weights"] == stock["weights"]


@pytest.mark.parametrize("case", [case for case in CASES if case != "unshuffled"])
def test_set_epoch_gives_each_epoch_its_order(ranks: Any, case: str) -> None:
    first, second = ranks[0][case]["ours"]["batches"]
    assert first != second


@pytest.mark.parametrize("case", [*CASES, "uneven"])
def test_a_sample_is_the_same_on_whichever_rank_it_is_loaded(ranks: Any, case: str) -> None:
    """With equal seeds, as every rank is told by `torch.manual_seed`: a run on two ranks trains on
    the samples of a run on one."""
    # Workers that persist keep their base seed, as with torch.
    alone = _alone("persistent" in case)
    loaded = set()
    for rank in range(RANKS):
        for epoch, samples in enumerate(ranks[rank][case]["ours"]["noise"]):
            for index, noise in samples:
                assert noise == alone[epoch][index]
                loaded.add((epoch, index))
    assert len(loaded) >= EPOCHS * (LENGTH - RANKS * BATCH_SIZE)


def _alone(persistent: bool) -> list[dict[int, list[float]]]:
    torch.manual_seed(SEED)
    dataset = Augmented()
    loader = MinatoLoader(
        dataset,
        BATCH_SIZE,
        sampler=SequentialSampler(dataset),
        num_workers=1,
        executor="thread",
        persistent_workers=persistent,
    )
    return [
        {
            index: draws
            for indices, noise in loader
            for index, draws in zip(indices.tolist(), noise.tolist(), strict=True)
        }
        for _ in range(EPOCHS)
    ]


def test_each_rank_counts_on_its_share_of_the_cpus(ranks: Any) -> None:
    loader = MinatoLoader(Augmented(), num_workers=1, scheduler="throughput")
    alone = [cpu_share(), check_options(loader).max_workers]
    for rank in range(RANKS):
        share, most = ranks[rank]["cpus"]
        assert share == pytest.approx(alone[0] / RANKS)
        assert most <= alone[1]
