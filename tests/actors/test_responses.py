"""Finished conversations on disk: what was written comes back, once, and its account follows from the file."""

from pathlib import Path

import numpy as np

from actors.responses import Response, commit_responses, read_responses, response_name, response_row
from actors.shards import file_sha256


def response(sample: int, tokens: int, answer: int, reason: str = "stop") -> Response:
    mask = np.arange(tokens) >= tokens - answer
    return Response(sample, np.arange(tokens, dtype=np.int32) + 100 * sample, mask, reason)


RESPONSES = [response(4, 9, 3), response(2, 5, 4, "length")]


def test_what_was_committed_comes_back_in_order(tmp_path: Path) -> None:
    row = commit_responses(tmp_path, 1, 3, RESPONSES, {"too_long": 2})
    assert [file.name for file in tmp_path.iterdir()] == [row.file] == ["responses-00001-of-00003.parquet"]
    back = read_responses(tmp_path / row.file)
    for found, wanted in zip(back, RESPONSES, strict=True):
        assert (found.sample, found.finish_reason) == (wanted.sample, wanted.finish_reason)
        assert found.token_ids.dtype == np.int32 and found.token_ids.tolist() == wanted.token_ids.tolist()
        assert found.loss_mask.dtype == bool and found.loss_mask.tolist() == wanted.loss_mask.tolist()


def test_the_account_follows_from_the_file_and_adds_up(tmp_path: Path) -> None:
    row = commit_responses(tmp_path, 0, 1, RESPONSES, {"too_long": 2, "truncated": 1})
    file = tmp_path / response_name(0, 1)
    assert response_row(file, 0) == row
    assert (row.shard, row.samples, row.samples_in, row.rows, row.supervised) == (0, 2, 5, 14, 7)
    assert row.dropped == {"too_long": 2, "truncated": 1}
    assert (row.bytes, row.sha256) == (file.stat().st_size, file_sha256(file))


def test_the_first_committer_wins(tmp_path: Path) -> None:
    first = commit_responses(tmp_path, 0, 1, RESPONSES, {})
    assert commit_responses(tmp_path, 0, 1, [response(9, 20, 5)], {"late": 1}) == first
    assert [r.sample for r in read_responses(tmp_path / first.file)] == [4, 2]


def test_a_shard_without_an_answer_is_still_a_shard(tmp_path: Path) -> None:
    row = commit_responses(tmp_path, 0, 1, [], {"too_long": 3})
    assert (row.samples, row.samples_in, row.rows, row.supervised) == (0, 3, 0, 0)
    assert read_responses(tmp_path / row.file) == []
