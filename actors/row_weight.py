"""Makes a step's gradient and metrics the mean over its supervised tokens, however many workers share them.

speculators takes the mean of each worker's row and DistributedDataParallel the mean of those, so a token in a row with
few supervised ones would weigh more, and another number of workers would train something else.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Output = tuple[Any, Tensor, dict[str, Tensor]]  # draft tokens, loss, metrics


def weigh_rows(model: torch.nn.Module) -> None:
    """Have `model` (a draft, or one inside DistributedDataParallel) weigh what it returns by the tokens it is from."""
    model.register_forward_hook(_by_supervised_tokens, with_kwargs=True)


def _by_supervised_tokens(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Output | list[Tensor]
) -> Output | list[Tensor]:
    if isinstance(output, list):
        return output  # draft tokens alone: nobody asked for a loss
    draft_tokens, loss, metrics = output
    mine = kwargs["loss_mask"].sum().float()
    if model.training and dist.is_initialized():
        together = mine.clone()
        dist.all_reduce(together)
        loss = loss * (mine * dist.get_world_size() / together.clamp(min=1))
    # accuracies are sums over tokens already; a loss comes as the mean of the row with a total of 1
    weighed = {key: value if "_acc_" in key else value * mine for key, value in metrics.items()}
    return draft_tokens, loss, weighed
