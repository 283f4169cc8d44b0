"""What every workload's trainer has in common: Muster's order of samples, dealt to ranks in equal or unequal
parts; an exact held-out loss; weights of checkpoints found whatever their names."""

from __future__ import annotations

from functools import partial
from typing import Any

import transformers
from accelerate.state import DistributedType, PartialState
from torch.utils.data import DataLoader, Sampler
from transformers.trainer_utils import seed_worker

from muster.core.errors import WorkerError
from muster.worker.data.sampler import Dealt
from muster.worker.heldout import ExactHeldOut
from muster.worker.resuming import ConvertedWeights


class OrderedSamples:
    """Goes before a Transformers trainer among the base classes. Set `sampler` before training.

    `shares`: samples of each micro-step per rank, which `worker/uneven.py` sets; None: the same for all.
    """

    sampler: Sampler[int]
    shares: tuple[int, ...] | None = None

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        return self.sampler

    def get_train_dataloader(self) -> Any:
        """This rank's part of every micro-step."""
        if self.shares is None:
            return super().get_train_dataloader()  # type: ignore[misc]
        args: Any = self.args  # type: ignore[attr-defined]
        loader = DataLoader(
            self.train_dataset,  # type: ignore[attr-defined]
            batch_sampler=Dealt(self.sampler, self.shares),
            collate_fn=self.data_collator,  # type: ignore[attr-defined]
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            persistent_workers=args.dataloader_persistent_workers,
            prefetch_factor=args.dataloader_prefetch_factor,
            worker_init_fn=partial(
                seed_worker, num_workers=args.dataloader_num_workers, rank=args.process_index
            ),
        )
        return self.accelerator.prepare(loader)  # type: ignore[attr-defined]


class Common(ConvertedWeights, ExactHeldOut, OrderedSamples):
    """Goes before a Transformers trainer among the base classes of every workload's own."""

    def floating_point_ops(self, inputs: Any) -> int:
        """Nothing: Transformers' estimate walks through all modules in every step, and nobody
        reads it: instruments/flops.py counts the real ones, once for each shape."""
        return 0

    def create_accelerator_and_postprocess(self) -> None:
        """Shard on CPUs as well: accelerate 1.15 (state.py, AcceleratorState) looks for FSDP's plugin under
        MULTI_GPU alone, and would train with DDP without a word. Raises WorkerError where it does so.
        """
        args: Any = self.args  # type: ignore[attr-defined]
        sharded = args.fsdp_plugin_args is not None
        if sharded and args.use_cpu and PartialState().distributed_type == DistributedType.MULTI_CPU:
            PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
        super().create_accelerator_and_postprocess()  # type: ignore[misc]
        made = self.accelerator.distributed_type  # type: ignore[attr-defined]
        if sharded and made != DistributedType.FSDP:
            raise WorkerError(f"accelerate chose {made} where FSDP was asked for", where="engine.name")


class Trainer(Common, transformers.Trainer):  # type: ignore[misc]
    """Transformers' trainer with what Muster adds."""
