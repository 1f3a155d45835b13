"""A Hugging Face forward of the verifier on the CPU: the second opinion of the capture gate, where it fits."""

import os
from pathlib import Path

import numpy as np

from actors.checkpoint_folder import read_config, text_config
from actors.units import gib

SPARE = 1.2  # of the weights' bytes: activations, and what loading needs


class HfForward:
    """Loads at once; ValueError when the machine has no room for the weights in float32."""

    def __init__(self, verifier: str, trust_remote_code: bool):
        import torch
        from transformers import AutoModelForCausalLM

        folder = Path(verifier)
        stored = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        width = {"float32": 4}.get(str(text_config(read_config(folder)).get("dtype")), 2)  # bytes a weight takes there
        needed, free = int(SPARE * stored * 4 / width), _available_bytes()
        if needed > free:
            raise ValueError(
                f"extract.gate.hf: a Hugging Face forward of {folder} in float32 takes {gib(needed)} GiB, and this "
                f"node has {gib(free)} free. Set extract.gate.hf=false: the other gates do not need it."
            )
        self._model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, trust_remote_code=trust_remote_code
        ).eval()

    def states(self, ids: list[int], layers: tuple[int, ...]) -> np.ndarray:
        """[T, L, H] bf16 bits: id k is the residual stream after k decoder layers, the last before the final norm."""
        import torch

        before_norm: dict[str, torch.Tensor] = {}
        hook = self._model.get_decoder().norm.register_forward_hook(lambda _, args, __: before_norm.update(x=args[0]))
        try:
            with torch.no_grad():
                found = self._model(torch.tensor([ids]), output_hidden_states=True).hidden_states
        finally:
            hook.remove()
        last = len(found) - 1
        stacked = torch.stack([before_norm["x"][0] if k == last else found[k][0] for k in layers], dim=1)
        return stacked.bfloat16().contiguous().view(torch.uint16).numpy()


def _available_bytes() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
