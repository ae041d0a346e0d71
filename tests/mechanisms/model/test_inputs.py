"""Packed records: what goes in comes out, every record once, little padding."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mechanisms.model import inputs
from mechanisms.model.config import OptimiserPhase
from mechanisms.model.inputs import (
    FeatureInputs,
    TokenInputs,
    length_sorted_batches,
)
from mechanisms.model.training import epoch_batches

CPU = torch.device("cpu")


def tokens(n: int, *, seed: int = 0) -> tuple[TokenInputs, list[list[int]]]:
    """n records of 1 to 40 tokens, and the lists they came from; the padding id 7 also occurs as a
    token.
    """
    g = torch.Generator().manual_seed(seed)
    lists = [
        torch.randint(100, (int(k),), generator=g).tolist()
        for k in torch.randint(1, 41, (n,), generator=g)
    ]
    return TokenInputs.from_lists(lists, pad_id=7), lists


def test_a_batch_is_its_records_padded() -> None:
    """Ids and mask give back the lists, in the order asked for, padded to the longest of the batch
    and no further.
    """
    packed, lists = tokens(20)
    index = torch.tensor([3, 17, 3, 0])
    batch = packed.batch(index, CPU)
    ids, mask = batch["input_ids"], batch["attention_mask"]
    assert ids.shape[1] == max(len(lists[i]) for i in index.tolist())
    for row, i in enumerate(index.tolist()):
        assert ids[row][mask[row].bool()].tolist() == lists[i]
        assert set(ids[row][~mask[row].bool()].tolist()) <= {7}
    assert packed.lengths.tolist() == [len(x) for x in lists]
    assert len(packed) == 20


def test_a_batch_of_states_and_words() -> None:
    """Hidden states are padded with zeros; a record without tokens, even the last one, is padding
    alone.
    """
    g = torch.Generator().manual_seed(0)
    states, words = torch.randn(5, 3, generator=g), torch.randn(3, 2, generator=g)
    packed = replace(
        TokenInputs.from_lists([[1, 2], [3, 4, 5], []], pad_id=7), states=states, words=words
    )
    batch = packed.batch(torch.tensor([2, 0]), CPU)
    assert batch.keys() == {"states", "attention_mask", "words"}
    assert torch.equal(batch["states"], torch.stack([torch.zeros(2, 3), states[:2]]))
    assert batch["attention_mask"].tolist() == [[0, 0], [1, 1]]
    assert torch.equal(batch["words"], words[[2, 0]])


@pytest.mark.parametrize("kind", ["tokens", "features"])
def test_saved_and_loaded(tmp_path: Path, kind: str) -> None:
    made: FeatureInputs | TokenInputs = (
        tokens(9)[0] if kind == "tokens" else FeatureInputs(features=torch.randn(9, 4))
    )
    made.save(tmp_path / "x.safetensors")
    loaded = inputs.load(tmp_path / "x.safetensors")
    assert type(loaded) is type(made)
    every = torch.arange(9)
    for name, tensor in made.batch(every, CPU).items():
        assert torch.equal(loaded.batch(every, CPU)[name], tensor)


def test_forward_batches_take_every_record_once_longest_first() -> None:
    """A partition of the records, sorted by length, so that padding is what the sorted order
    leaves.
    """
    packed, _ = tokens(101)
    batches = list(length_sorted_batches(packed, batch_size=8))
    order = torch.cat(batches)
    assert sorted(order.tolist()) == list(range(101))
    assert [len(b) for b in batches] == [8] * 12 + [5]
    assert bool((packed.lengths[order].diff() <= 0).all())


@pytest.mark.parametrize("made", [tokens(0)[0], FeatureInputs(features=torch.zeros(0, 4))])
def test_no_records_no_batches(made: FeatureInputs | TokenInputs) -> None:
    assert list(length_sorted_batches(made, batch_size=8)) == []


def padded(packed: TokenInputs, batches: list[Tensor]) -> int:
    return sum(int(packed.lengths[b].max()) * len(b) for b in batches)


@pytest.mark.parametrize("n", [1, 7, 8, 400, 401, 999])
@pytest.mark.parametrize("bucketing", [False, True])
def test_training_batches_take_every_record_once(n: int, bucketing: bool) -> None:
    """An epoch is a partition into batches of the batch size (the last may be short), however it is
    gathered.
    """
    packed, _ = tokens(n)
    phase = OptimiserPhase(batch_size=8, length_bucketing=bucketing)
    batches = list(epoch_batches(packed, phase=phase, seed=0, purpose="x", epoch=1))
    assert sorted(torch.cat(batches).tolist()) == list(range(n))
    assert len(batches) == phase.steps(n) / phase.epochs
    assert sum(len(b) < 8 for b in batches) <= 1


def test_training_order_is_a_function_of_seed_purpose_and_epoch() -> None:
    """The same words give the same order; another seed, phase or epoch gives another."""
    packed, _ = tokens(300)

    def order(**words: Any) -> list[int]:
        options: dict[str, Any] = {"seed": 0, "purpose": "a", "epoch": 1} | words
        phase = OptimiserPhase(length_bucketing=True)
        return torch.cat(list(epoch_batches(packed, phase=phase, **options))).tolist()

    assert order() == order()
    others = [order(), order(seed=1), order(purpose="b"), order(epoch=2)]
    assert len({tuple(o) for o in others}) == 4


def test_bucketing_spares_most_padding_and_shuffles() -> None:
    """Within a tenth of no padding at all, against a third and more without; long records do not
    come in one run.
    """
    packed, _ = tokens(2000)
    real = int(packed.lengths.sum())
    plain, bucketed = (
        list(
            epoch_batches(
                packed, phase=OptimiserPhase(length_bucketing=b), seed=0, purpose="x", epoch=1
            )
        )
        for b in (False, True)
    )
    assert padded(packed, plain) > 1.33 * real
    assert padded(packed, bucketed) < 1.1 * real
    longest = torch.stack([packed.lengths[b].max() for b in bucketed]).double()
    neighbours = torch.corrcoef(torch.stack([longest[:-1], longest[1:]]))[0, 1]
    # 250 batches: the correlation of a shuffled sequence has standard deviation 0.063, six of them
    # are 0.38.
    assert abs(float(neighbours)) < 0.38
