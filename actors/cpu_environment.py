"""What makes vLLM and training fast on CPUs, found from the machine (pure)."""

import sys
from pathlib import Path

BF16_FLAGS = {"avx512_bf16", "amx_bf16"}


def has_bf16() -> bool:
    """Whether this CPU multiplies bf16 in hardware. Without, bf16 products are some 20 times slower than fp32 ones."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return False
    flags = next((line for line in info.read_text().splitlines() if line.startswith("flags")), "")
    return bool(BF16_FLAGS & set(flags.split()))


def cpu_engine_environment(eager: bool) -> dict[str, str]:
    """Environment of a vLLM engine on CPU, compiled or `eager`; `engine.env` wins over it."""
    env = {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # binding by core id fails in containers that see few of the cores
        "VLLM_CPU_CI_ENV": "1",  # no warm-up of kernels that eager mode does not use
    }
    openmp = Path(sys.prefix) / "lib" / "libiomp5.so"  # from the wheel intel-openmp; measured 1.3x at decode
    if openmp.exists():
        env["LD_PRELOAD"] = str(openmp)
    if eager:
        # vLLM compiles the count of a prompt logprob's rank even so: two seconds within the first request that asks
        env["TORCH_COMPILE_DISABLE"] = "1"
    return env
