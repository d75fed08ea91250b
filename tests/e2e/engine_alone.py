"""One rank of a student that trains without Ray and vLLM: verl's engine, gloo, fixed data.

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=… MASTER_PORT=… VERL_PLATFORM=cpu VERL_ENGINE_DEVICE=cuda \
        python tests/e2e/engine_alone.py fsdp2|veomni MODEL

prints one JSON line an update: loss, gradient norm, and a checksum of the weights after it.
"""

import json
import sys
from functools import partial
from typing import Any

import torch
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils as tu
from verl.utils.distributed import destroy_global_process_group, initialize_global_process_group_ray
from verl.workers.config import (
    FSDPEngineConfig,
    FSDPOptimizerConfig,
    HFModelConfig,
    VeOmniEngineConfig,
    VeOmniOptimizerConfig,
)
from verl.workers.engine import EngineRegistry
from verl.workers.utils.losses import sft_loss

UPDATES = 3
SEQUENCES = 4  # of each rank
OPTIMIZER = {"lr": 1e-3, "weight_decay": 0.01, "total_training_steps": UPDATES, "lr_scheduler_type": "constant"}


def engine_config(engine: str) -> tuple[Any, Any]:
    """The same training in each engine's own terms: bf16 products over fp32 weights, plain attention."""
    if engine == "fsdp2":
        return FSDPEngineConfig(strategy="fsdp2", use_torch_compile=False), FSDPOptimizerConfig(**OPTIMIZER)
    return (
        VeOmniEngineConfig(attn_implementation="sdpa", moe_implementation="eager", mixed_precision=True),
        VeOmniOptimizerConfig(**OPTIMIZER),
    )


def build(engine: str, model: str) -> Any:
    """verl's engine for this model, ready to train."""
    config, optimizer = engine_config(engine)
    built = EngineRegistry.new(
        model_type="language_model",
        backend=engine,
        model_config=HFModelConfig(
            path=model,
            use_remove_padding=False,
            enable_gradient_checkpointing=False,
            override_config={"attn_implementation": "sdpa"},
        ),
        engine_config=config,
        optimizer_config=optimizer,
        checkpoint_config=CheckpointConfig(),
    )
    built.initialize()
    return built


def batch(update: int) -> Any:
    """Sequences of 8 to 11 random tokens, other ones for each rank and update; every token is learned."""
    draw = torch.Generator().manual_seed(100 * update + torch.distributed.get_rank())
    rows = [torch.randint(5, 100, (8 + number % 4,), generator=draw) for number in range(SEQUENCES)]

    def nest(tensors: list[torch.Tensor]) -> torch.Tensor:
        return torch.nested.as_nested_tensor(tensors, layout=torch.jagged)

    return tu.get_tensordict(
        {
            "input_ids": nest(rows),
            "position_ids": nest([torch.arange(len(row)) for row in rows]),
            "loss_mask": nest([torch.ones(len(row)) for row in rows]),
        },
        non_tensor_dict={
            "use_remove_padding": False,
            "use_dynamic_bsz": False,
            "micro_batch_size_per_gpu": SEQUENCES,
            "temperature": 1.0,
            "global_batch_size": SEQUENCES * torch.distributed.get_world_size(),
            "pad_token_id": 0,
        },
    )


def main() -> None:
    engine_name, model = sys.argv[1:]
    torch.set_num_threads(1)
    initialize_global_process_group_ray(timeout_second=120)
    engine = build(engine_name, model)
    for update in range(UPDATES):
        with engine.train_mode():
            output = engine.train_batch(batch(update), partial(sft_loss, None))
        weights, _ = engine.get_per_tensor_param()
        checksum = sum(weight.double().abs().sum().item() for _, weight in weights)
        line = {"loss": sum(output["loss"]), "grad_norm": output["metrics"]["grad_norm"], "checksum": checksum}
        print(json.dumps(line), flush=True)
    destroy_global_process_group()


if __name__ == "__main__":
    main()
