"""A tiny verifier for tests: a random-weight Llama checkpoint that transformers, speculators and vLLM all load.

It has SmolLM2's layout at toy size (GQA, head_dim 64, ChatML template, byte-level BPE) and takes milliseconds to
write. Same arguments, same bytes. The weights are drawn wide enough that greedy choices are not ties in bf16.
"""

import json
from pathlib import Path
from typing import Any

HEAD_DIM = 64
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]  # ids 0 unk, 1 bos, 2 eos = pad: as in SmolLM2
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
KIMI_MAP = {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]}
CORPUS = """You are a helpful AI assistant. system user assistant What is the capital of France? Please write a short
story about an eagle that builds its nest above the river valley. Explain how a bridge carries weight,
step by step, and give three reasons why tests should fail when behaviour is wrong. Complete the
following Python function: def add(first, second): return first plus second. Translate this sentence into
another language and describe every word. Which numbers between seven and twenty are prime? Compare
summer with winter. Why does bread rise? Could somebody tell me when the next train leaves today?"""


def write_tiny_llama(
    folder: Path,
    *,
    layers: int = 4,
    hidden: int = 128,
    heads: int = 2,
    kv_heads: int = 1,
    intermediate: int = 256,
    vocab: int = 512,
    context: int = 1024,
    dtype: str = "bfloat16",
    tied: bool = False,
    seed: int = 0,
) -> Path:
    """Write a LlamaForCausalLM checkpoint with tokenizer and chat template; returns `folder`."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=HEAD_DIM,
        max_position_embeddings=context,
        initializer_range=0.1,
        tie_word_embeddings=tied,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        dtype=dtype,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    write_tiny_tokenizer(folder, vocab=vocab)
    for file in folder.iterdir():
        file.chmod(0o644)
    return folder


def write_tiny_tokenizer(folder: Path, *, vocab: int = 512) -> Path:
    """Write a byte-level BPE tokenizer of exactly `vocab` (259 to 512) tokens with a ChatML template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator([CORPUS], trainer)
    assert bpe.get_vocab_size() == vocab, f"the corpus gives {bpe.get_vocab_size()} tokens, not {vocab}"
    fast = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        unk_token="<|endoftext|>",
        pad_token="<|im_end|>",
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)
    # transformers 5 writes a class name that transformers 4 does not know
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    file.write_text(json.dumps(config, indent=2) + "\n")
    return folder


def use_tiktoken(folder: Path, auto_map: Any = KIMI_MAP, *, code: bool = True) -> Path:
    """Replace the tokenizer in `folder` by files as Kimi has them: tiktoken.model, and Python that reads it."""
    (folder / "tokenizer.json").unlink()
    (folder / "tiktoken.model").write_text("IQ== 0\n")
    if code:
        (folder / "tokenization_kimi.py").write_text("raise RuntimeError('it ran')\n")
    config: dict[str, Any] = {"added_tokens_decoder": {"500": {"content": "<think>"}, "7": {"content": "[EOS]"}}}
    if auto_map is not None:
        config["auto_map"] = auto_map
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
