"""A fast tokenizer keeps the lengths of the last call in itself: one for each worker."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from minato_async import MinatoLoader

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")


class Pairs(Dataset[Any]):
    """A source and a target of other lengths, as for translation."""

    def __init__(self) -> None:
        words = {"[UNK]": 0, "[PAD]": 1} | {f"w{n}": n + 2 for n in range(50)}
        made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
        made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        self.tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]"
        )

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> tuple[int, int]:
        text = " ".join(f"w{n % 50}" for n in range(index % 7, 200))
        long, short = (
            self.tokenizer(text, truncation=True, max_length=length, padding="max_length")
            for length in (128, 32)
        )
        return len(long["input_ids"]), len(short["input_ids"])


def test_two_lengths_on_threads() -> None:
    loader: Any = MinatoLoader(Pairs(), batch_size=4, num_workers=8, executor="thread")
    lengths = [torch.stack(batch) for batch in loader]

    assert all(torch.equal(batch, torch.tensor([[128] * 4, [32] * 4])) for batch in lengths)
