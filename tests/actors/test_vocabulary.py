"""The draft's vocabulary: what the verifier says most often in the training conversations, and nothing else."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from actors.shards import SampleStates, ShardMeta, commit, shard_name
from actors.vocabulary import Vocabulary, build_vocabulary, count_tokens, load_vocabulary, save_vocabulary

META = ShardMeta(verifier="v", layers=(1,), hidden_size=2, engine="fake", config_hash="c")
COUNTS = Counter({7: 50, 90: 30, 3: 10, 55: 6, 12: 4})


def targets(vocabulary: Vocabulary) -> list[int]:
    """Target ids of the draft's rows."""
    assert vocabulary.d2t is not None
    return (torch.arange(len(vocabulary.d2t)) + vocabulary.d2t).tolist()


def test_the_most_frequent_tokens_are_in_it() -> None:
    found = build_vocabulary(COUNTS, 3, 100)
    assert targets(found) == [3, 7, 90]
    assert found.t2d is not None and found.t2d.dtype == torch.bool and len(found.t2d) == 100
    assert found.t2d.nonzero().flatten().tolist() == [3, 7, 90]
    assert found.coverage == pytest.approx(0.9) and found.counted == 100


def test_fewer_tokens_than_rows_are_all_covered_and_the_rest_is_filled_without_repeats() -> None:
    found = build_vocabulary(COUNTS, 8, 100)
    assert found.coverage == 1 and len(set(targets(found))) == 8 and COUNTS.keys() <= set(targets(found))
    assert found.t2d is not None and found.t2d.nonzero().flatten().tolist() == targets(found)


def test_kept_tokens_are_in_it_whatever_their_count_and_coverage_counts_what_was_said() -> None:
    found = build_vocabulary(COUNTS, 3, 100, kept=[12, 99])
    assert targets(found) == [7, 12, 99]
    assert found.t2d is not None and found.t2d.nonzero().flatten().tolist() == [7, 12, 99]
    assert found.coverage == pytest.approx(0.54) and found.counted == 100
    assert targets(build_vocabulary(COUNTS, 3, 100, kept=[7, 7])) == [3, 7, 90]  # it is there anyway
    assert targets(build_vocabulary(COUNTS, 2, 100, kept=[99, 98])) == [98, 99]
    assert build_vocabulary(COUNTS, 100, 100, kept=[99]) == Vocabulary(None, None, 1.0, 100)


def test_more_kept_tokens_than_rows_are_refused() -> None:
    with pytest.raises(ValueError, match=r"verifier\.kept_tokens: 3 tokens.*draft\.draft_vocab_size 2; give fewer"):
        build_vocabulary(COUNTS, 2, 100, kept=[1, 2, 3])


def test_the_full_vocabulary_needs_no_mapping() -> None:
    assert build_vocabulary(COUNTS, 100, 100) == Vocabulary(None, None, 1.0, 100)


@pytest.mark.parametrize("counts", [Counter(), Counter({5: 0})])
@pytest.mark.parametrize("size", [3, 100])
def test_nothing_supervised_is_an_error_that_says_where_to_look(counts: Counter[int], size: int) -> None:
    with pytest.raises(ValueError, match="no supervised token.*extract step's accounting"):
        build_vocabulary(counts, size, 100)


def test_it_comes_back_from_its_file(tmp_path: Path) -> None:
    for size in (3, 100):
        built = build_vocabulary(COUNTS, size, 100)
        save_vocabulary(built, tmp_path / "v.pt")
        loaded = load_vocabulary(tmp_path / "v.pt")
        assert loaded.coverage == built.coverage
        for one, other in ((loaded.d2t, built.d2t), (loaded.t2d, built.t2d)):
            assert (one is None and other is None) or torch.equal(one, other)


def test_only_supervised_tokens_of_the_training_samples_are_counted(tmp_path: Path) -> None:
    def sample(number: int, ids: list[int], mask: list[bool]) -> SampleStates:
        states = np.zeros((len(ids), 1, 2), np.uint16)
        return SampleStates(number, np.array(ids, np.int32), np.array(mask), states)

    commit(tmp_path, 0, 2, [sample(0, [5, 5, 6], [False, True, True]), sample(1, [9, 9], [True, True])], META, {})
    commit(tmp_path, 1, 2, [sample(2, [6, 7], [True, False])], META, {})
    files = [str(tmp_path / shard_name(shard, 2)) for shard in range(2)]
    assert count_tokens(files, {0, 2}) == Counter({6: 2, 5: 1})
    assert count_tokens(files, {1}) == Counter({9: 2})
    assert count_tokens(files, {42}) == Counter()
