"""The command that tells a running pool how many workers it shall have."""

from pathlib import Path

import pytest

from actors.pool_size import pool_size, read_size
from workflows.scale import main


def test_a_running_pool_is_told(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    step = tmp_path / "extract" / "0123abcd"
    step.mkdir(parents=True)
    (tmp_path / ".lease").touch()
    with pool_size(step, 2):
        assert main([str(tmp_path), "workers=5"]) == 0
        assert read_size(step) == 5
    assert capsys.readouterr().out == "extract 0123abcd: 2 -> 5 workers\n"
    assert main([str(tmp_path), "workers=5"]) == 2  # the pool is gone, and so is its file
    assert "before or behind its extraction" in capsys.readouterr().err


@pytest.mark.parametrize("args", [[], ["x"], ["x", "workers=0"], ["x", "workers=two"], ["x", "workers=1", "y"]])
def test_usage(args: list[str], capsys: pytest.CaptureFixture) -> None:
    assert main(args) == 2
    assert "usage: python -m workflows.scale OUTPUT_ROOT workers=N" in capsys.readouterr().err


def test_no_driver_no_pool(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main([str(tmp_path), "workers=2"]) == 2
    assert "no driver works on" in capsys.readouterr().err and list(tmp_path.iterdir()) == []
