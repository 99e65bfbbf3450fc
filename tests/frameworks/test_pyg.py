"""PyTorch Geometric: its loaders, unmodified but for the class that they are made on. It puts an
iterator of its own around that of the loader, and resets it from epoch to epoch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from minato_async import MinatoLoader
from tests.lifetime.support import eventually_collected
from tests.loaders import on_each_executor

pytest.importorskip("torch_geometric")

import torch_geometric.loader as loaders
from torch_geometric.data import Data
from torch_geometric.loader.base import DataLoaderIterator
from torch_geometric.sampler import BaseSampler, SamplerOutput

from .support import made_on, our_workers

pytestmark = on_each_executor

#: A ring of 20 nodes: node i has the feature i and one edge, to the next.
NODES = torch.arange(20)
RING = Data(x=NODES[:, None].float(), edge_index=torch.stack([NODES, NODES.roll(-1)]))


class NextOnes(BaseSampler):  # type: ignore[misc]
    """Takes nodes and those that follow them. PyG's own samplers need libraries that are not here;
    they are called in the same way."""

    edge_permutation = None

    def sample_from_nodes(self, index: Any, **_: Any) -> SamplerOutput:
        count = len(index.node)
        return SamplerOutput(
            node=torch.cat([index.node, (index.node + 1) % len(NODES)]),
            row=torch.arange(count),
            col=torch.arange(count, 2 * count),
            edge=index.node,
            metadata=(index.input_id, index.time),
        )

    def sample_from_edges(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


@pytest.fixture(params=[DataLoader, MinatoLoader], ids=["torch", "minato"])
def base(request: pytest.FixtureRequest) -> Iterator[Any]:
    """What PyG's loaders are made on."""
    with made_on(request.param, loaders.NodeLoader, loaders.DataLoader):
        yield request.param


def node_loader(persistent: bool = True, **options: Any) -> Any:
    """One that gathers features in the consumer's process, by way of a wrapped iterator."""
    own = {"batch_size": 5, "num_workers": 2, "persistent_workers": persistent}
    return loaders.NodeLoader(RING, NextOnes(), filter_per_worker=False, **(own | options))


def features(batches: Any) -> list[list[float]]:
    """The features of the nodes that were asked for; those that follow are checked."""
    found = []
    for batch in batches:
        asked, following = batch.x.flatten().chunk(2)
        assert torch.equal((asked + 1) % len(NODES), following)
        found.append(asked.tolist())
    return found


IN_ORDER = torch.arange(20.0).reshape(4, 5).tolist()


@pytest.mark.parametrize("persistent", [True, False])
def test_nodes_in_every_epoch(base: Any, persistent: bool) -> None:
    loader = node_loader(persistent)
    for _ in range(3):
        assert features(loader) == IN_ORDER
        assert features(itertools.islice(loader, 2)) == IN_ORDER[:2]
    assert isinstance(loader, base)
    if persistent:
        wrapper = iter(loader)
        assert type(wrapper) is DataLoaderIterator
        assert iter(loader) is wrapper
        assert len(wrapper) == 4


def test_nodes_without_workers(base: Any) -> None:
    loader = node_loader(persistent=False, num_workers=0)
    assert [features(loader) for _ in range(2)] == [IN_ORDER] * 2


def test_shuffled_nodes_are_torchs(base: Any) -> None:
    def epochs() -> Any:
        generator = torch.Generator().manual_seed(2)
        loader = node_loader(shuffle=True, generator=generator)
        return [features(loader) for _ in range(3)]

    found = epochs()
    plain: Any = DataLoader(
        NODES, 5, shuffle=True, generator=torch.Generator().manual_seed(2), num_workers=0
    )
    assert found[0] == [batch.tolist() for batch in plain]
    assert sorted(itertools.chain(*found[2])) == NODES.tolist()


@pytest.mark.parametrize("persistent", [True, False])
def test_graphs_in_every_epoch(base: Any, persistent: bool) -> None:
    graphs = [RING.subgraph(NODES[: index + 2]) for index in range(7)]
    options: Any = {"num_workers": 2, "persistent_workers": persistent}
    loader = loaders.DataLoader(graphs, batch_size=3, **options)
    assert isinstance(loader, base)
    for _ in range(2):
        batches = list(loader)
        assert [batch.num_graphs for batch in batches] == [3, 3, 1]
        assert [batch.ptr.tolist() for batch in batches] == [[0, 2, 5, 9], [0, 5, 11, 18], [0, 8]]
        assert [int(batch.edge_index.max()) for batch in batches] == [8, 17, 7]
        found = torch.cat([batch.x for batch in batches])
        assert torch.equal(found, torch.cat([graph.x for graph in graphs]))


def test_workers_end_with_the_loader() -> None:
    with made_on(MinatoLoader, loaders.NodeLoader):
        loader = node_loader()
        next(iter(loader))
        assert our_workers()
        # Its collate function is a method of its own.
        del loader
        assert eventually_collected(lambda: not our_workers())
