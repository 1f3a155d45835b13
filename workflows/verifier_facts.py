"""What a plan needs to know of a verifier: no weights are read or downloaded, and for known ones no network is needed.

The config.json is that of a local folder, of the hub's cache or the hub itself, else one that lies in
workflows/references; `VerifierFacts.source` says which it was.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.verifier import Verifier, read_config, text_config
from conf.schema import VerifierConfig
from workflows.verifier_source import BUNDLED_PREFIX, BUNDLED_VERIFIERS
from workflows.weight_bytes import INDEX, computed_bytes, element_bytes, quantisation, stored_bytes

REFERENCES = Path(__file__).parent / "references"
KNOWN = {
    "moonshotai/Kimi-K2.5": "kimi_k25_config.json",
    "moonshotai/Kimi-K2-Instruct": "kimi_k2_config.json",
    "bundled:smollm2": "smollm2_config.json",
}
HUB_WAIT_S = 2.0


@dataclass(frozen=True)
class VerifierFacts:
    """Shape and size of a verifier."""

    verifier: Verifier  # without path and fingerprint: only its config was read
    weight_bytes: int  # as stored
    element_bytes: int | None  # of one stored weight; None: they are quantised
    kv_layers: int  # layers that keep the KV of every token
    latent: int | None  # with MLA: values of a token's KV in one layer, all heads together
    kv_heads: int
    head_dim: int
    source: str  # for people: where this comes from


def verifier_facts(cfg: VerifierConfig, output_root: Path) -> VerifierFacts:
    """Facts of the configured verifier. ValueError says what cannot be found and what to give instead."""
    folder = Path(cfg.source).expanduser()
    if cfg.source.startswith(BUNDLED_PREFIX):
        name = cfg.source.removeprefix(BUNDLED_PREFIX)
        if name not in BUNDLED_VERIFIERS:
            known = ", ".join(BUNDLED_PREFIX + one for one in sorted(BUNDLED_VERIFIERS))
            raise ValueError(f"verifier.source: no bundled verifier {name!r}; there is: {known}")
        converted = sorted((output_root / "verifiers").glob(f"{name}-*/config.json"))
        return folder_facts(converted[-1].parent) if converted else _reference(cfg.source, "before its conversion")
    if folder.is_dir():
        return folder_facts(folder)
    if cfg.source.startswith((".", "/", "~")):
        raise ValueError(
            f"verifier.source: there is no folder {folder}. Give a checkpoint folder, a hub id, or bundled:smollm2."
        )
    return _hub_facts(cfg)


def folder_facts(folder: Path, name: str | None = None) -> VerifierFacts:
    """Facts of a folder with a config.json, and with weights or their index if it has any."""
    return _facts(read_config(folder), stored_bytes(folder), name or f"config.json of {folder}")


def _hub_facts(cfg: VerifierConfig) -> VerifierFacts:
    try:
        config = _hub_file(cfg, "config.json")
    except Exception as error:  # of whatever the hub's HTTP client raises
        if cfg.source in KNOWN:
            return _reference(cfg.source, "the hub was not reached")
        raise ValueError(
            f"verifier.source: cannot read config.json of {cfg.source!r} at verifier.revision={cfg.revision} from the "
            f"hub ({error}). Give a folder that holds its config.json and {INDEX}, or one of: {', '.join(KNOWN)}."
        ) from error
    try:
        _hub_file(cfg, INDEX)  # lands beside config.json
    except Exception:  # a model in one file has no index
        return folder_facts(config.parent, f"config.json of {cfg.source} from the hub")
    return folder_facts(config.parent, f"config.json and index of {cfg.source} from the hub")


def _hub_file(cfg: VerifierConfig, name: str) -> Path:
    """A file of the hub's cache, else of the hub."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache

    cached = try_to_load_from_cache(cfg.source, name, revision=cfg.revision)
    if isinstance(cached, str):
        return Path(cached)
    # hf_hub_download alone would try for half a minute where there is no network
    get_hf_file_metadata(hf_hub_url(cfg.source, name, revision=cfg.revision), timeout=HUB_WAIT_S)
    return Path(hf_hub_download(cfg.source, name, revision=cfg.revision))


def _reference(source: str, why: str) -> VerifierFacts:
    read = json.loads((REFERENCES / KNOWN[source]).read_text(encoding="utf-8"))
    counted = (read["weight_bytes"], "as it is converted") if "weight_bytes" in read else None
    return _facts(read["config"], counted, f"config.json that comes with Eyrie ({why})")


def _facts(config: dict[str, Any], counted: tuple[int, str] | None, source: str) -> VerifierFacts:
    text = text_config(config)
    need: Callable[[str], Any] = text.__getitem__
    try:
        size, how = counted or (computed_bytes(config), "computed from it")
        heads = need("num_attention_heads")
        verifier = Verifier(
            path="",
            fingerprint="",
            hidden_size=need("hidden_size"),
            num_layers=need("num_hidden_layers"),
            vocab_size=need("vocab_size"),
            max_position_embeddings=need("max_position_embeddings"),
            architecture=(config.get("architectures") or ["unknown"])[0],
            num_attention_heads=heads,
            rms_norm_eps=text.get("rms_norm_eps", 1e-6),  # of no matter for a plan
        )
        latent = need("kv_lora_rank") + need("qk_rope_head_dim") if text.get("kv_lora_rank") else None
    except KeyError as error:
        raise ValueError(f"verifier.source: {source} has no key {error}; is it a language model?") from None
    kinds = text.get("layer_types")  # layers with a window or a state keep less: left out rather than overstated
    return VerifierFacts(
        verifier=verifier,
        weight_bytes=size,
        element_bytes=None if quantisation(config) else element_bytes(config),
        kv_layers=kinds.count("full_attention") if kinds else verifier.num_layers,
        latent=latent,
        kv_heads=text.get("num_key_value_heads") or heads,
        head_dim=text.get("head_dim") or verifier.hidden_size // heads,
        source=f"{source}; weights {how}",
    )
