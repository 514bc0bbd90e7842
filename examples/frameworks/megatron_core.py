"""A GPT of Megatron-core: tensor and data parallel, bf16, microbatches, clipping, a schedule, evaluation, checkpoints.

    understudy run --nproc-per-node 4 --spares 1 examples/frameworks/megatron_core.py FOLDER --tensor-parallel 2

The lines that name `understudy` are all that a user adds or changes. Megatron-core needs GPUs, and has been tried here
without any: by a shim of the test equipment (`claims/frameworks --only megatron`). With `--distributed-optimizer` the
job needs `--peer-snapshot-every 1`. Checkpoints, and what each rank has found, are written to FOLDER.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from understudy.integrations import megatron as understudy

WORDS, LENGTH, MICROBATCHES, SEED = 64, 16, 2, 1234


def texts(count: int, seed: int) -> TensorDataset:
    """Each word follows from the one before it, most of the time."""
    numbers = torch.Generator().manual_seed(seed)
    first = torch.randint(WORDS, (count, 1), generator=numbers)
    noise = torch.randint(3, (count, LENGTH + 1), generator=numbers)
    return TensorDataset((first + 5 * torch.arange(LENGTH + 1) + noise) % WORDS)


def built(tensor_parallel: int, distributed_optimizer: bool) -> tuple[Any, Any, Any]:
    """Model, optimizer and schedule, as Megatron-LM would set them up."""
    config = TransformerConfig(
        num_layers=2,
        hidden_size=32,
        num_attention_heads=4,
        bf16=True,
        params_dtype=torch.bfloat16,
        pipeline_dtype=torch.bfloat16,
        tensor_model_parallel_size=tensor_parallel,
        gradient_accumulation_fusion=False,  # a CUDA extension
        finalize_model_grads_func=finalize_model_grads,
    )
    model = GPTModel(config, get_gpt_layer_local_spec(), WORDS, LENGTH).bfloat16().to(torch.cuda.current_device())
    settings = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        use_distributed_optimizer=distributed_optimizer,
        overlap_grad_reduce=True,
        bucket_size=10_000,  # several, as a real model has
    )
    model = DistributedDataParallel(config, settings, model)
    config.no_sync_func = model.no_sync
    wanted = OptimizerConfig(
        optimizer="adam",
        lr=0.01,
        min_lr=0.001,
        bf16=True,
        params_dtype=torch.bfloat16,
        clip_grad=1.0,
        use_distributed_optimizer=distributed_optimizer,
    )
    optimizer = get_megatron_optimizer(wanted, [model])
    scheduler = OptimizerParamScheduler(optimizer, 0.0, 0.01, 0.001, 4, 64, "cosine", 0.01, 0.01, 64, "constant")
    return model, optimizer, scheduler


def forward_step(batches: Iterator[Any], model: Any) -> tuple[Any, Any]:
    [text] = (part.to(torch.cuda.current_device()) for part in next(batches))
    places = torch.arange(LENGTH, device=text.device).expand(len(text), LENGTH)
    later = torch.ones(1, 1, LENGTH, LENGTH, device=text.device).triu(1).bool()
    losses = model(text[:, :-1].contiguous(), places, later, labels=text[:, 1:].contiguous())
    return losses, lambda losses: (losses.mean(), {"loss": losses.detach().mean()})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--distributed-optimizer", action="store_true")
    options = parser.parse_args()
    job = understudy.join()
    parallel_state.initialize_model_parallel(options.tensor_parallel)
    tensor_parallel.model_parallel_cuda_manual_seed(SEED)
    model, optimizer, scheduler = built(options.tensor_parallel, options.distributed_optimizer)
    rank, size = parallel_state.get_data_parallel_rank(), parallel_state.get_data_parallel_world_size()
    training = texts(256, 1)
    loader = DataLoader(training, batch_size=4, sampler=DistributedSampler(training, size, rank))
    understudy.protect(job, model, optimizer, scheduler, data=loader, batches_per_step=MICROBATCHES, share=(rank, size))
    run = get_forward_backward_func()
    held_out = DataLoader(texts(32, 2), batch_size=4)

    def passed(batches: Iterator[Any], count: int, forward_only: bool) -> torch.Tensor:
        found = run(
            forward_step_func=forward_step,
            data_iterator=batches,
            model=model,
            num_microbatches=count,
            seq_length=LENGTH,
            micro_batch_size=4,
            forward_only=forward_only,
        )
        return torch.stack([one["loss"] for one in found]).mean()

    metrics = open(options.folder / f"metrics-{dist.get_rank()}.csv", "a")  # noqa: SIM115

    @job.section("evaluate")  # understudy
    def evaluate(number: int) -> None:
        model.eval()
        with torch.no_grad():
            loss = passed(iter(held_out), len(held_out), True)
        model.train()
        dist.all_reduce(loss, group=parallel_state.get_data_parallel_group())
        rate = optimizer.param_groups[0]["lr"]
        print(
            number, rate, loss.item() / size, sep=",", file=metrics, flush=True
        )  # twice, if a rank was lost meanwhile

    @job.section("save")  # understudy
    def save_checkpoint(folder: Path) -> None:
        part = folder / f"mp_rank_{parallel_state.get_tensor_model_parallel_rank():02d}"
        part.mkdir(parents=True, exist_ok=True)
        if rank == 0:
            state = {"model": model.state_dict_for_save_checkpoint(), "optimizer": optimizer.state_dict()}
            torch.save(state, part / "model_optim_rng.pt")
        if options.distributed_optimizer:
            optimizer.save_parameter_state(part / "distrib_optim.pt")
        dist.barrier()

    for step in job.steps(options.steps):  # understudy
        with step:  # understudy
            tensor_parallel.model_parallel_cuda_manual_seed(SEED + step.number)  # understudy
            model.zero_grad_buffer()
            optimizer.zero_grad()
            passed(iter(step.batches()), MICROBATCHES, False)  # understudy: the batches of a step
            updated, _norm, _ = optimizer.step()
            if updated:
                scheduler.step(4 * MICROBATCHES * size)
        if not step.committed:  # understudy: a rank was lost, and the step comes again
            continue
        if step.number % 4 == 3:
            evaluate(step.number)
        if step.number % 6 == 5:
            save_checkpoint(options.folder / "checkpoint" / str(step.number))
    weights = [value.double().sum().item() for value in model.parameters()]
    result = {"weights": weights, "steps": scheduler.num_steps, "rate": optimizer.param_groups[0]["lr"]}
    (options.folder / f"found-{dist.get_rank()}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
