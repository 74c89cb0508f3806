"""Users' programs as accelerate's and transformers' first pages have them; they do not know that torch_mpi is there.

usage: trainers.py OUTPUT ; says on how many ranks each trained, and on which backend.
"""

import os
import sys

import torch
import torch.distributed as dist
from accelerate import Accelerator
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


def say(what, size, before, after):
    """In one piece, as ranks write at the same time."""
    backend = dist.get_backend() if dist.is_initialized() else "nothing"
    assert after < before, (what, before, after)
    os.write(1, ("%s: trained by %d on %s\n" % (what, size, backend)).encode())


def with_accelerate():
    """The loop of its page, on data that every rank has a part of."""
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    inputs = torch.randn(64, 8)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True)), 8)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    losses = []
    for _ in range(10):
        for one, target in data:
            loss = torch.nn.functional.mse_loss(model(one), target)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            losses.append(accelerator.gather(loss.detach()).mean().item())
    weights = accelerator.gather(accelerator.unwrap_model(model).weight.detach())
    assert torch.equal(weights, weights[:1].expand_as(weights)) and len(weights) == accelerator.num_processes
    say("accelerate", accelerator.num_processes, losses[0], losses[-1])


def with_transformers(folder):
    """Trainer with a small model of its own."""
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32))
    data = [{"input_ids": [one % 32] * 8, "labels": one % 2} for one in range(64)]
    trainer = Trainer(model, TrainingArguments(
        folder, use_cpu=True, num_train_epochs=3, learning_rate=0.01, report_to=[], save_strategy="no",
        logging_steps=1, disable_tqdm=True, ddp_find_unused_parameters=False), train_dataset=data)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    say("transformers", trainer.args.world_size, losses[0], losses[-1])


with_accelerate()
with_transformers(sys.argv[1])
if dist.is_initialized():
    dist.destroy_process_group()
