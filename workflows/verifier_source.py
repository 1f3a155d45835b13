"""From `verifier.source` to a checkpoint folder on this machine."""

import logging
from pathlib import Path

from actors.verifier import Verifier, read_verifier
from conf.schema import VerifierConfig
from workflows.model_source import hub_folder, local_folder
from workflows.smollm2 import smollm2_folder

log = logging.getLogger(__name__)
BUNDLED_PREFIX = "bundled:"
BUNDLED_VERIFIERS = {"smollm2": smollm2_folder}
EXAMPLE = "bundled:smollm2"


def resolve_verifier(cfg: VerifierConfig, output_root: Path) -> Verifier:
    """Make the verifier local: converted once below `output_root`, used where it lies, or downloaded."""
    verifier = read_verifier(_folder(cfg, output_root))
    if verifier.tokenizer_code and cfg.trust_remote_code:
        file = Path(verifier.path) / verifier.tokenizer_code
        log.info("verifier: runs the Python of %s, its tokenizer (verifier.trust_remote_code=true)", file)
    return verifier


def _folder(cfg: VerifierConfig, output_root: Path) -> Path:
    if cfg.source.startswith(BUNDLED_PREFIX):
        return _bundled(cfg.source.removeprefix(BUNDLED_PREFIX), output_root)
    folder = local_folder("verifier.source", cfg.source, instead=EXAMPLE)
    if folder is None:
        asked = f" at verifier.revision={cfg.revision}"
        folder = hub_folder("verifier.source", cfg.source, revision=cfg.revision, asked=asked, instead=EXAMPLE)
    return folder


def _bundled(name: str, output_root: Path) -> Path:
    if name not in BUNDLED_VERIFIERS:
        known = ", ".join(BUNDLED_PREFIX + n for n in sorted(BUNDLED_VERIFIERS))
        raise ValueError(f"verifier.source: no bundled verifier {name!r}; there is: {known}")
    try:
        return BUNDLED_VERIFIERS[name](output_root / "verifiers")
    except ValueError as error:
        raise ValueError(f"verifier.source: {error}") from error
