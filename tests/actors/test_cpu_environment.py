"""What a CPU engine is started with."""

import subprocess
import sys

import pytest

from actors.cpu_environment import cpu_engine_environment

COMPILED = """
import torch
from torch._dynamo.utils import counters
torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
print(bool(counters["frames"]))
"""


@pytest.mark.parametrize("eager", [True, False])
def test_an_eager_engine_compiles_nothing(eager: bool) -> None:
    env = {name: value for name, value in cpu_engine_environment(eager).items() if name != "LD_PRELOAD"}
    done = subprocess.run([sys.executable, "-c", COMPILED], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(not eager)
