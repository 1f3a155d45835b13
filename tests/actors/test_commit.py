"""Files that are whole or absent, whatever fails on the way."""

import errno
from pathlib import Path

import pytest

from actors.commit import TEMPORARY, commit_once, replace_atomically, sweep, whole_folder


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_the_first_committer_wins_and_knows_it(tmp_path: Path) -> None:
    final = tmp_path / "a"
    assert commit_once(final, lambda file: file.write_text("first") and None)
    assert not commit_once(final, lambda file: file.write_text("second") and None)
    assert final.read_text() == "first" and names(tmp_path) == ["a"]


def test_a_disk_that_fills_up_leaves_neither_the_file_nor_a_part_of_it(tmp_path: Path) -> None:
    def half(file: Path) -> None:
        file.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        commit_once(tmp_path / "a", half)
    assert names(tmp_path) == []


def test_the_final_name_appears_only_after_the_write(tmp_path: Path) -> None:
    def look(file: Path) -> None:
        assert file.name.startswith(TEMPORARY) and file.parent == tmp_path
        file.write_text("x")
        assert not (tmp_path / "a").exists()

    assert commit_once(tmp_path / "a", look)


def test_a_small_file_is_replaced_whole(tmp_path: Path) -> None:
    for text in ("old", "new"):
        replace_atomically(tmp_path / "a", text)
    assert (tmp_path / "a").read_text() == "new" and names(tmp_path) == ["a"]


def test_a_replacement_that_fails_leaves_the_old_file_alone(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()  # os.replace cannot put a file over it
    with pytest.raises(OSError):
        replace_atomically(tmp_path / "a", "new")
    assert names(tmp_path) == ["a"]


def test_a_folder_takes_the_place_of_an_older_one_and_is_whole(tmp_path: Path) -> None:
    for content in ("old", "new"):
        with whole_folder(tmp_path / "draft") as folder:
            assert folder.name.startswith(TEMPORARY) and list(folder.iterdir()) == []
            (folder / "deep").mkdir()
            (folder / "deep" / content).write_text(content)
    assert names(tmp_path) == ["draft"] and names(tmp_path / "draft" / "deep") == ["new"]


def test_a_folder_that_fails_half_way_leaves_the_old_one_alone(tmp_path: Path) -> None:
    (tmp_path / "draft").mkdir()
    (tmp_path / "draft" / "config.json").write_text("old")
    with pytest.raises(OSError, match="No space"), whole_folder(tmp_path / "draft") as folder:
        (folder / "config.json").write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")
    assert names(tmp_path) == ["draft"] and (tmp_path / "draft" / "config.json").read_text() == "old"


def test_sweep_removes_files_and_folders_of_dead_attempts(tmp_path: Path) -> None:
    (tmp_path / f"{TEMPORARY}draft-7").mkdir()  # as the train step leaves it when it dies while saving
    (tmp_path / f"{TEMPORARY}draft-7" / "model.safetensors").write_text("half")
    (tmp_path / f"{TEMPORARY}part-8").write_text("half")
    (tmp_path / "draft").mkdir()
    assert sweep(tmp_path) == 2 and names(tmp_path) == ["draft"]
