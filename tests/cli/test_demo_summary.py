"""The table's verdicts: they say what the numbers say, whoever wins."""

from collections.abc import Sequence

import pytest

from minato_async.cli.demo.options import LOADERS
from minato_async.cli.demo.summary import (
    FIRST_BATCH,
    GAP,
    SPEED,
    Row,
    Verdict,
    best_row,
    compare,
    complaints,
    sentence,
)
from minato_async.cli.demo.training import Training


def measured(
    speed: float,
    first: float = 0.5,
    waited: float = 0.4,
    memory: int = 500,
    checksum: int = 1,
    at_once: int = 2,
) -> Training:
    seconds = 100 / speed
    return Training(
        samples=100,
        batches=10,
        seconds=seconds,
        waited=waited * seconds,
        first_batch=[first, first],
        gaps=[0.1] * 9,
        most_at_once=at_once,
        checksum=checksum,
        loss=0.0,
        accuracy=0.0,
        gil="off",
        device="CPU",
        threads=1,
        peak_memory=memory * 2**20,
    )


def row(loader: str, *speeds: float) -> Row:
    return Row(LOADERS[loader], [measured(speed) for speed in speeds])


def rows(**speeds: Sequence[float]) -> dict[str, Row]:
    names = {"order": "torch", "any": "torch-any-order", "minato": "minato"}
    return {names[key]: row(names[key], *values) for key, values in speeds.items()}


@pytest.mark.parametrize(
    ("mine", "theirs", "verdict"),
    [
        ((110, 112, 111), (100, 101, 102), Verdict.BETTER),
        ((100, 101, 102), (110, 112, 111), Verdict.WORSE),
        ((100, 120, 130), (90, 95, 101), Verdict.UNDECIDED),  # The rounds overlap.
        ((100.4, 100.5), (100.0, 100.1), Verdict.UNDECIDED),  # Apart, but by nothing.
        ((200,), (100,), Verdict.UNDECIDED),  # Of one round no spread is known.
    ],
)
def test_only_what_the_rounds_leave_no_doubt_of_is_decided(
    mine: Sequence[float], theirs: Sequence[float], verdict: Verdict
) -> None:
    assert compare(row("minato", *mine), row("torch", *theirs), SPEED) is verdict


def test_less_time_is_better() -> None:
    quick = Row(LOADERS["minato"], [measured(100, first=0.2), measured(100, first=0.21)])
    slow = Row(LOADERS["torch"], [measured(100, first=0.4), measured(100, first=0.5)])

    assert compare(quick, slow, FIRST_BATCH) is Verdict.BETTER
    assert best_row([slow, quick], FIRST_BATCH) is quick
    assert best_row([slow, quick], SPEED) is None


def test_a_win_is_told_against_the_faster_rival() -> None:
    text = sentence(rows(order=(80, 81), any=(100, 101), minato=(120, 121)))

    assert text.startswith(
        "MinatoLoader fed the training 1.20 × as fast as torch in_order=False "
        "(the faster of the other two)"
    )
    assert text.endswith(".")
    assert text.count(". ") == 0  # One sentence.


def test_a_loss_is_told() -> None:
    text = sentence(rows(order=(100, 101), any=(80, 81), minato=(90, 91)))

    assert text.startswith(
        "MinatoLoader was slower than torch in order (the faster of the other two): 0.90 × its"
    )


def test_no_difference_is_told() -> None:
    text = sentence(rows(order=(100, 110), any=(80, 81), minato=(104, 112)))

    assert text.startswith(
        "MinatoLoader and torch in order (the faster of the other two) fed the training equally "
        "fast within the spread between rounds (1.03 ×)"
    )


def test_each_other_column_is_told_as_it_is() -> None:
    mine = [measured(100, first=0.2, waited=0.6, memory=500 + i) for i in range(2)]
    theirs = [measured(100, first=0.4, waited=0.5, memory=499 + i) for i in range(2)]

    text = sentence(
        {"minato": Row(LOADERS["minato"], mine), "torch": Row(LOADERS["torch"], theirs)}
    )

    assert "; it was better in first batch (0.20 against 0.40 s)" in text
    assert "; it was worse in data wait (60.0 against 50.0 %)" in text
    assert (
        "; there is no difference beyond the spread in p99 gap (100 against 100 ms) and peak "
        "memory (500 against 500 MiB)" in text
    )


def test_one_round_proves_nothing_and_says_so() -> None:
    text = sentence(rows(order=(100,), minato=(200,)))

    assert text.startswith("In this one round, which tells no spread and so proves nothing, Minato")
    assert "2.00 ×" in text


def test_without_minato_or_without_anything_to_compare() -> None:
    assert sentence(rows(order=(80, 81), any=(100, 101))).startswith(
        "torch in_order=False fed the training 1.25 × as fast as torch in order;"
    )
    assert "no other loader was measured" in sentence(rows(minato=(100, 101)))
    assert sentence({}) == "No loader came to its end, so there is nothing to compare."


def test_an_epoch_of_one_batch_has_no_gap() -> None:
    lonely = measured(100)
    lonely.gaps.clear()

    mine, theirs = Row(LOADERS["minato"], [lonely, lonely]), row("torch", 100, 100)

    assert compare(mine, theirs, GAP) is Verdict.UNDECIDED
    assert "p99 gap (– against 100 ms)" in sentence({"minato": mine, "torch": theirs})


def test_unequal_work_is_complained_of() -> None:
    fair = rows(order=(100, 101), minato=(100, 101))
    assert complaints(fair, workers=2) == []

    other_pixels = {**fair, "minato": Row(LOADERS["minato"], [measured(100, checksum=2)])}
    (complaint,) = complaints(other_pixels, workers=2)
    assert complaint.startswith("the trainings did not see the same samples")

    too_many = {**fair, "minato": Row(LOADERS["minato"], [measured(100, at_once=3)])}
    assert complaints(too_many, workers=2) == [
        "MinatoLoader made up to 3 samples at once, with 2 workers agreed"
    ]
