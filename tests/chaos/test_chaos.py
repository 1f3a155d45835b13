"""A short storm with each of its faults once; the long one is `python -m tests.chaos --minutes 20`."""

import re
import subprocess
import sys

import pytest

EACH = ["worker killed", "driver killed", "disk full"]


def storm(limit_s: float, *options: str) -> str:
    command = [sys.executable, "-m", "tests.chaos", "--seed", "4", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(290)
def test_nothing_of_an_extraction_is_lost_or_twice() -> None:
    said = storm(280, "--minutes", "3", "--rounds", "extract", "--conversations", "60", "--only", *EACH)
    closing = re.search(r"1 rounds, (\d+) faults, 0 differences", said)
    assert closing and int(closing[1]) >= len(EACH) - 1, said  # where no tmpfs may be mounted, no disk is filled


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("rounds", ["train", "vllm"])
def test_nothing_of_a_training_or_of_the_real_engine_is_lost(rounds: str) -> None:
    said = storm(890, "--minutes", "4", "--rounds", rounds)
    assert re.search(r"[1-9]\d* faults, 0 differences", said), said
