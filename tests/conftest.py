"""What every test shares: a quiet environment, one local Ray, one tiny verifier.

The environment is set here, at import, since ray, transformers and vLLM read theirs once, when first imported; and as
variables, since Ray's workers and the subprocesses of tests inherit them.
"""

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tiny import write_tiny_llama

ROOT = Path(__file__).resolve().parent.parent

os.environ.update(
    RAY_AUTH_MODE="disabled",  # else a local Ray writes a token into the home directory, and later clusters ask for it
    RAY_USAGE_STATS_ENABLED="0",
    VLLM_NO_USAGE_STATS="1",
    HF_HUB_OFFLINE="1",
    TOKENIZERS_PARALLELISM="false",
    AWS_ACCESS_KEY_ID="test",  # for tests/s3.py, on Ray's workers too
    AWS_SECRET_ACCESS_KEY="secret-of-the-test",
    PYTHONPATH=os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
)
os.environ.pop("RAY_ADDRESS", None)  # tests never join somebody's cluster


@pytest.fixture(scope="session")
def local_ray() -> Iterator[None]:
    """One Ray for the session, with 4 nominal CPUs. Tests that need it name it and never call ray.init."""
    import ray

    # Ray puts sockets below this folder, and their paths may have 107 bytes: pytest's own folders are too deep.
    folder = tempfile.mkdtemp(prefix="eyrie-")
    ray.init(
        address="local",
        num_cpus=4,
        labels={"group": "tests"},
        object_store_memory=200 << 20,  # bytes
        include_dashboard=False,
        logging_level=logging.WARNING,
        log_to_driver=False,
        _temp_dir=folder,
    )
    yield
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a random-weight Llama with tokenizer and chat template. Read only: it is shared by all tests."""
    return write_tiny_llama(tmp_path_factory.mktemp("verifier") / "tiny-llama")
