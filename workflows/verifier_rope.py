"""`draft.rope_theta: null` made explicit: the rope of the verifier, as its config.json has it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from actors.draft_flags import rope
from actors.verifier import Verifier, read_config, text_config
from conf.schema import EyrieConfig
from workflows.errors import ConfigError


def with_verifier_rope(cfg: EyrieConfig, verifier: Verifier) -> EyrieConfig:
    """`cfg` with theta and scaling in figures. ConfigError when both null theta and a scaling were given, or when the
    verifier has no single rope."""
    draft = cfg.draft
    if draft.rope_theta is not None:
        return cfg
    if draft.rope_scaling:
        raise ConfigError(
            f"draft.rope_scaling: {draft.rope_scaling} without draft.rope_theta, and null is the verifier's own rope; "
            "give both, or neither"
        )
    theta, scaling = verifier_rope(text_config(read_config(Path(verifier.path))), verifier.max_position_embeddings)
    return replace(cfg, draft=replace(draft, rope_theta=theta, rope_scaling=scaling))


def verifier_rope(config: dict[str, Any], max_position_embeddings: int) -> tuple[float, dict[str, Any] | None]:
    """Theta, and the scaling or None, of a text config: rope_theta beside rope_scaling, or rope_parameters."""
    given = config.get("rope_parameters") or config.get("rope_scaling")
    theta = (given or {}).get("rope_theta", config.get("rope_theta"))
    if theta is None or any(isinstance(value, dict) for value in (given or {}).values()):
        raise ConfigError(
            "draft.rope_theta: null takes the verifier's rope, and its config.json has no single one; give "
            "draft.rope_theta and draft.rope_scaling"
        )
    parameters = rope(float(theta), given, max_position_embeddings)
    scaling = {key: value for key, value in parameters.items() if key != "rope_theta"}
    return float(theta), None if scaling["rope_type"] == "default" else scaling
