"""A short storm; the long one is `python -m tests.chaos --minutes 20`."""

import re
import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_nothing_is_lost_in_a_short_storm() -> None:
    command = [
        sys.executable,
        "-m",
        "tests.chaos",
        "--minutes",
        "2",
        "--faults",
        "5",
        "--conversations",
        "60",
        "--seed",
        "4",
    ]
    storm = subprocess.run(command, capture_output=True, text=True, timeout=270)
    assert storm.returncode == 0, storm.stdout + storm.stderr
    closing = re.search(r"1 rounds, (\d+) faults, 0 shards lost or different", storm.stdout)
    assert closing and int(closing[1]) == 5, storm.stdout
