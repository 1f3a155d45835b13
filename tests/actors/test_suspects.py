"""What is held against a shard whose worker died, and against its samples."""

from pathlib import Path

from actors.dead_letters import read_dead_letters, write_dead_letters
from actors.suspects import DEATHS, SAMPLE_DEATHS, Suspects


def test_a_shard_becomes_a_suspect_by_deaths_and_is_cleared_by_its_commit(tmp_path: Path) -> None:
    suspects = Suspects(tmp_path)
    for _ in range(DEATHS - 1):
        assert not suspects.died(4).suspect
    assert suspects.died(4).suspect and not suspects.of(5).suspect
    assert Suspects(tmp_path).of(4).suspect  # another driver knows it too
    suspects.cleared(4)
    assert suspects.of(4).deaths == 0 and list((tmp_path / "attempts").iterdir()) == []


def test_a_sample_is_lost_when_the_worker_died_at_its_turn_and_only_then(tmp_path: Path) -> None:
    suspects = Suspects(tmp_path)
    for sample in (7, 8, 8, 8):  # an accident at 7, then 8 again and again
        suspects.turn(0, sample)
        known = suspects.died(0)
    assert known.samples == {"7": 1, "8": SAMPLE_DEATHS} and known.lost == [8] == suspects.all_lost()
    suspects.turn(0, 9)
    suspects.over(0)
    assert suspects.died(0).samples == {"7": 1, "8": SAMPLE_DEATHS}  # nobody's turn


def test_a_new_run_gives_a_lost_sample_one_more_turn(tmp_path: Path) -> None:
    suspects = Suspects(tmp_path)
    for _ in range(SAMPLE_DEATHS + DEATHS):
        suspects.turn(0, 8)
        suspects.died(0)
    suspects.another_chance()
    assert suspects.of(0).lost == [] and suspects.of(0).suspect
    suspects.turn(0, 8)
    assert suspects.died(0).lost == [8]
    Suspects(tmp_path / "none").another_chance()


def test_lost_samples_of_committed_shards_stay_counted(tmp_path: Path) -> None:
    write_dead_letters(tmp_path, 3, [(30, "p/30", "died"), (31, "p/31", "died")])
    write_dead_letters(tmp_path, 1, [(10, "p/10", "died")])
    assert Suspects(tmp_path).all_lost() == [10, 30, 31]
    assert [letter["id"] for letter in read_dead_letters(tmp_path)] == ["p/10", "p/30", "p/31"]
    assert read_dead_letters(tmp_path / "none") == []
