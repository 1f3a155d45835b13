"""prompts.parquet and eval/<name>.parquet: one row a conversation (pure)."""

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from actors.commit import whole_file
from actors.engine import Message

SCHEMA = pa.schema(
    [
        ("sample", pa.int32()),  # row number
        ("id", pa.string()),
        ("source", pa.string()),
        ("split", pa.string()),  # train, val or eval
        ("messages", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        ("num_tokens", pa.int32()),  # of the first user turn, rendered with the generation prompt
    ]
)


@dataclass(frozen=True)
class PromptRow:
    """One conversation; `messages` ends with a user message and holds no assistant turn."""

    sample: int
    id: str
    source: str
    split: str
    messages: list[Message]
    num_tokens: int


def write_prompts(file: Path, rows: list[PromptRow]) -> None:
    """Write atomically: the file exists when it is whole."""
    assert [r.sample for r in rows] == list(range(len(rows))), "sample is the row number"
    table = pa.Table.from_pylist([vars(r) for r in rows], schema=SCHEMA)
    with whole_file(file) as temporary:
        pq.write_table(table, temporary)


def read_prompts(file: Path) -> list[PromptRow]:
    """Rows in order."""
    return [PromptRow(**row) for row in pq.read_table(file).to_pylist()]
