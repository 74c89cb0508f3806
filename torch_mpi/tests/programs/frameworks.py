"""A small training in each framework, on the backend that it is told. usage: frameworks.py FRAMEWORK BACKEND OUTPUT

Writes the losses of rank 0 to OUTPUT as JSON, to be compared between backends.
"""

import json
import os
import sys
import tempfile

import torch
import torch.distributed as dist
from mpi_environment import rank_and_size

RANK, SIZE = rank_and_size()
STEPS, BATCH, WIDTH = 8, 8, 16


def batches():
    """The data of this rank."""
    generator = torch.Generator().manual_seed(RANK)
    for _ in range(STEPS):
        inputs = torch.randn(BATCH, WIDTH, generator=generator)
        yield inputs, inputs.sum(1, keepdim=True)


def network():
    """The same on all ranks."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))


def start(backend):
    """The default group, of the ranks that MPI gives; the same environment as torchrun's."""
    dist.init_process_group(backend, **({} if backend == "mpi" else {"init_method": "mpi://"}))
    os.environ.update(RANK=str(RANK), WORLD_SIZE=str(SIZE), LOCAL_RANK=str(RANK), LOCAL_WORLD_SIZE=str(SIZE))


def zero(backend, stage):
    """DeepSpeed's ZeRO of this stage, on CPUs."""
    os.environ.update(DS_ACCELERATOR="cpu", DS_BUILD_OPS="0")
    start(backend)
    import deepspeed
    settings = {"train_micro_batch_size_per_gpu": BATCH, "zero_optimization": {"stage": stage},
                "optimizer": {"type": "SGD", "params": {"lr": 0.01}}, "zero_allow_untested_optimizer": True}
    model = network()
    settings.pop("optimizer")
    engine, *_ = deepspeed.initialize(model=model, config=settings, dist_init_required=False,
                                      optimizer=torch.optim.SGD(model.parameters(), lr=0.01))
    losses = []
    for inputs, target in batches():
        loss = torch.nn.functional.mse_loss(engine(inputs), target)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    with tempfile.TemporaryDirectory() as folder:
        shared = [folder]
        dist.broadcast_object_list(shared, 0)
        engine.save_checkpoint(shared[0])
        dist.barrier()
    return losses


def zero1(backend):
    """Optimizer states in parts."""
    return zero(backend, 1)


def zero2(backend):
    """Gradients in parts, too."""
    return zero(backend, 2)


def lightning(backend):
    """Its Trainer with DistributedDataParallel."""
    import lightning
    from lightning.pytorch.strategies import DDPStrategy

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network, self.losses = network(), []

        def training_step(self, batch, _):
            loss = torch.nn.functional.mse_loss(self.network(batch[0]), batch[1])
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    class Data(torch.utils.data.IterableDataset):
        def __iter__(self):
            return batches()

    start(backend)
    module = Module()
    trainer = lightning.Trainer(
        accelerator="cpu", devices=SIZE, max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, strategy=DDPStrategy(process_group_backend=backend))
    trainer.fit(module, torch.utils.data.DataLoader(Data(), batch_size=None))
    assert trainer.world_size == SIZE
    return module.losses


def transformers(backend):
    """Its Trainer with a small model of its own."""
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
    start(backend)
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        hidden_dropout_prob=0, attention_probs_dropout_prob=0))
    data = [{"input_ids": [one % 32] * 8, "labels": one % 2} for one in range(64)]
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(model, TrainingArguments(
            folder, use_cpu=True, num_train_epochs=2, learning_rate=0.01, report_to=[], save_strategy="no",
            logging_steps=1, disable_tqdm=True, ddp_find_unused_parameters=False, ddp_backend=backend),
            train_dataset=data)
        trainer.train()
    assert trainer.args.world_size == SIZE
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def torchrec(backend):
    """An embedding in parts by tables, in its DistributedModelParallel."""
    import torchrec as rec
    from torchrec.distributed import DistributedModelParallel
    start(backend)
    torch.manual_seed(0)
    tables = [rec.EmbeddingBagConfig(name="t%d" % one, embedding_dim=8, num_embeddings=64, feature_names=["f%d" % one])
              for one in range(SIZE)]
    model = DistributedModelParallel(rec.EmbeddingBagCollection(tables=tables, device=torch.device("meta")),
                                     device=torch.device("cpu"))
    generator = torch.Generator().manual_seed(RANK)
    losses = []
    for _ in range(STEPS):
        lengths = torch.ones(SIZE * BATCH, dtype=torch.int64)
        values = torch.randint(64, (SIZE * BATCH,), generator=generator)
        features = rec.KeyedJaggedTensor(keys=["f%d" % one for one in range(SIZE)], values=values, lengths=lengths)
        loss = model(features).values().square().mean()
        loss.backward()
        losses.append(loss.item())
    return losses


def main(framework, backend, output):
    losses = globals()[framework](backend)
    assert dist.get_backend() == backend, dist.get_backend()
    if RANK == 0:
        with open(output, "w") as out:
            json.dump(losses, out)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
