"""Which sample becomes which row of which batch."""

from __future__ import annotations

import random

import pytest

from minato_async.engine.batch import Batch
from minato_async.engine.batch_builder import AsDrawn, ReadyFirst
from minato_async.engine.feed import Block


def block_of(indices: str, unit: int = 1) -> Block:
    return Block(0, list(indices), unit)


class TestBatch:
    def test_fills_up(self) -> None:
        batch = Batch(3, 1)
        batch.put(1, ["b", "c"])
        assert (batch.size, batch.missing, batch.held) == (3, 1, 2)
        batch.put(0, ["a"])
        assert (batch.samples, batch.missing, batch.held) == (["a", "b", "c"], 0, 3)

    def test_gives_its_content_away(self) -> None:
        batch = Batch(1, 1)
        batch.content = "content"
        assert batch.take_content() == "content"
        assert batch.content is None

    def test_forgets_samples_but_not_how_many(self) -> None:
        batch = Batch(2, 1)
        batch.put(0, ["a"])
        batch.rows = object()
        batch.forget_samples()
        assert (batch.samples, batch.rows, batch.held, batch.size) == ([], None, 0, 2)

    def test_is_shortened_to_what_it_has(self) -> None:
        batch = Batch(4, 1, ["a", "b"])
        batch.put(0, ["A", "B"])
        batch.shorten()
        assert (batch.samples, batch.indices, batch.missing) == (["A", "B"], ["a", "b"], 0)


class TestAsDrawn:
    def test_every_block_is_a_batch_row_for_row(self) -> None:
        builder = AsDrawn()
        one, other = block_of("abc"), block_of("de")
        batches = [builder.expect(block) for block in (one, other)]
        assert [batch.indices for batch in batches if batch] == [["a", "b", "c"], ["d", "e"]]
        assert builder.place(other, 1, 1) == [(batches[1], 1, 1)]
        assert builder.place(one, 0, 3) == [(batches[0], 0, 3)]
        assert builder.unfinished() is None

    def test_failure_of_the_first_row_counts(self) -> None:
        builder, block = AsDrawn(), block_of("abcd")
        builder.expect(block)
        late, early, middle = ValueError("late"), ValueError("early"), ValueError("middle")
        assert builder.fail(block, 3, late).failure is late
        assert builder.fail(block, 1, early).failure is early
        batch = builder.fail(block, 2, middle)
        assert batch is block.batch
        assert (batch.failure, batch.failed_row, batch.lost) == (early, 1, True)

    def test_failure_is_final_when_no_earlier_one_can_come(self) -> None:
        builder, block = AsDrawn(), block_of("abcd")
        builder.expect(block)
        batch = builder.fail(block, 2, ValueError())
        block.settled[2] = 1
        assert not builder.reportable(block, batch)
        block.settled[1] = 1
        assert not builder.reportable(block, batch)
        block.settled[0] = 1
        assert builder.reportable(block, batch)


class TestReadyFirst:
    def test_samples_go_into_batches_as_they_become_ready(self) -> None:
        builder = ReadyFirst()
        one, other = block_of("abc"), block_of("def")
        assert builder.expect(one) is None
        assert builder.expect(other) is None
        ((first, row, count),) = builder.place(other, 1, 2)
        assert (row, count) == (0, 2)
        assert builder.place(one, 2, 1) == [(first, 2, 1)]
        assert first.indices == ["e", "f", "c"]
        ((second, row, _),) = builder.place(one, 0, 1)
        assert second is not first
        assert row == 0

    def test_many_at_once_are_spread_over_batches(self) -> None:
        builder = ReadyFirst()
        for size in (3, 3, 1):
            builder.expect(block_of("x" * size))
        builder.place(block_of("12"), 0, 2)
        block = block_of("abcde")
        places = builder.place(block, 0, 5)
        assert [(row, count) for _, row, count in places] == [(2, 1), (0, 3), (0, 1)]
        assert [batch.indices for batch, _, _ in places] == [
            ["1", "2", "a"],
            ["b", "c", "d"],
            ["e"],
        ]

    def test_failure_is_an_item_of_its_own(self) -> None:
        builder, block = ReadyFirst(), block_of("abc")
        builder.expect(block)
        ((forming, _, _),) = builder.place(block, 0, 1)
        error = ValueError()
        batch = builder.fail(block, 1, error)
        assert batch is not forming
        assert (batch.size, batch.indices, batch.failure, batch.lost) == (1, ["b"], error, True)
        assert builder.reportable(block, batch)
        assert builder.place(block, 2, 1) == [(forming, 1, 1)]

    def test_what_is_left_at_the_end_is_a_shorter_batch(self) -> None:
        builder, block = ReadyFirst(), block_of("abc")
        builder.expect(block)
        ((forming, row, count),) = builder.place(block, 1, 2)
        forming.put(row, ["B", "C"][:count])
        assert builder.unfinished() is forming
        assert (forming.samples, forming.indices, forming.missing) == (["B", "C"], ["b", "c"], 0)
        assert builder.unfinished() is None

    @pytest.mark.parametrize("seed", range(5))
    def test_all_are_full_but_the_last_whatever_the_order(self, seed: int) -> None:
        shuffle = random.Random(seed).shuffle
        builder = ReadyFirst()
        blocks = [block_of("abcd"), block_of("efgh"), block_of("ijkl"), block_of("m")]
        tickets = [(block, row) for block in blocks for row in range(len(block.indices))]
        for block in blocks:
            builder.expect(block)
        shuffle(tickets)
        batches: list[Batch] = []
        for block, row in tickets:
            ((batch, place, count),) = builder.place(block, row, 1)
            batch.put(place, [block.indices[row]] * count)
            if batch not in batches:
                batches.append(batch)
        assert [batch.size for batch in batches] == [4, 4, 4, 4]
        assert [batch.missing for batch in batches] == [0, 0, 0, 3]
        assert builder.unfinished() is batches[-1]
        assert [batch.size for batch in batches] == [4, 4, 4, 1]
        assert [batch.missing for batch in batches] == [0] * 4
        # Each row holds the sample of its own index, in the order in which they came.
        assert [batch.indices for batch in batches] == [batch.samples for batch in batches]
        assert [s for batch in batches for s in batch.samples] == [
            block.indices[row] for block, row in tickets
        ]
