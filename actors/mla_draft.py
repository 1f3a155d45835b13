"""An EAGLE-3 draft layer with multi-head latent attention, which speculators 0.9 lacks: registered beside its own.

Importing this module is enough: afterwards speculators builds, trains, saves and loads drafts whose decoder config is a
DeepseekV3Config. vLLM has the same layer as `Eagle3DeepseekV2ForCausalLM` (models/deepseek_eagle3.py).
"""

from speculators.models.base_components import ModelComponents
from speculators.models.eagle3.model_definitions import Eagle3FirstLayerMixin, model_classes
from torch import nn
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import (
    DeepseekV3DecoderLayer,
    DeepseekV3RMSNorm,
    DeepseekV3RotaryEmbedding,
)

MODEL_TYPE = "deepseek_v3"  # of the decoder config inside speculators; vLLM's flat form calls it deepseek_v2


class MlaFirstLayer(Eagle3FirstLayerMixin, DeepseekV3DecoderLayer):
    """Reads token embedding and state side by side: the two projections into latents take 2 x hidden size."""

    def __init__(self, config: DeepseekV3Config, layer_idx: int, norm_before_residual: bool = False):
        super().__init__(config, layer_idx)
        self.norm_before_residual = norm_before_residual
        self.hidden_norm = DeepseekV3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        attention, read = self.self_attn, 2 * config.hidden_size
        attention.q_a_proj = nn.Linear(read, config.q_lora_rank, bias=False)
        attention.kv_a_proj_with_mqa = nn.Linear(read, config.kv_lora_rank + config.qk_rope_head_dim, bias=False)
        for norm in (attention.q_a_layernorm, attention.kv_a_layernorm):
            norm.variance_epsilon = config.rms_norm_eps  # as vLLM has it; transformers would keep 1e-6


model_classes[MODEL_TYPE] = ModelComponents(
    MlaFirstLayer, DeepseekV3DecoderLayer, DeepseekV3RMSNorm, DeepseekV3RotaryEmbedding
)
