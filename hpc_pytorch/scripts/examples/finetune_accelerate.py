#!/usr/bin/env python3
"""
Fine-tuning in Hugging Face's style, with accelerate: an example to start from.

    pytorch-run --nodes 2 --requeue 5 finetune_accelerate.py --epochs 3

The first part of the model keeps its weights, the last part learns a new task. Started again, it goes on from the last
epoch that was saved. SIGUSR1 and SIGTERM make it end with status 85 after the epoch, on which the job script queues it
again.

To make it yours, replace `make_model`, with AutoModelForSequenceClassification.from_pretrained(...), and `make_data`.
"""
import argparse
import glob
import os
import shutil
import signal
import sys

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WORDS, LENGTH, WIDTH = 64, 16, 32
REQUEUE = 85
signals = []


def make_model():
    """Words, what they mean, and which kind of text it is; only the last is trained."""
    model = nn.Sequential(nn.EmbeddingBag(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2))
    model[0].requires_grad_(False)
    return model


def make_data(size, seed):
    """Texts, and whether more of their words are from the second half of the dictionary."""
    texts = torch.randint(WORDS, (size, LENGTH), generator=torch.Generator().manual_seed(seed))
    return TensorDataset(texts, (texts.float().mean(dim=1) > WORDS / 2).long())


def say(accelerator, text):
    """Once; accelerator.print does on every node."""
    if accelerator.is_main_process:
        print(text, flush=True)


def right(accelerator, model, loader):
    """Return the share of right answers of all ranks."""
    model.eval()
    answers = []
    with torch.no_grad():
        for texts, kinds in loader:
            answers.append(accelerator.gather_for_metrics(model(texts).argmax(dim=1) == kinds))
    model.train()
    return torch.cat(answers).float().mean().item()


def resume(accelerator, directory):
    """Load what was saved last; returns how many epochs that are. A directory that is not whole has another name."""
    for path in sorted(glob.glob(os.path.join(directory, 'epoch-*')))[-1:]:
        accelerator.load_state(path)
        say(accelerator, "resuming from %s" % path)
        return int(path.split('-')[-1])
    return 0


def save(accelerator, directory, epochs):
    """Under another name until all ranks have written their part."""
    partial = os.path.join(directory, 'partial')
    whole = os.path.join(directory, 'epoch-%05d' % epochs)
    if accelerator.is_main_process:
        shutil.rmtree(partial, ignore_errors=True)
    accelerator.wait_for_everyone()
    accelerator.save_state(partial)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        os.rename(partial, whole)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--epochs', type=int, default=5)
    parser.add_argument('--samples', type=int, default=4096)
    parser.add_argument('--checkpoints', default='finetuned', metavar='DIRECTORY')
    options = parser.parse_args()
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, lambda *_: signals.append(True))
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    set_seed(1)
    model = make_model()
    optimizer = torch.optim.AdamW((weight for weight in model.parameters() if weight.requires_grad), lr=1e-2)
    model, optimizer, loader, test = accelerator.prepare(
        model, optimizer, DataLoader(make_data(options.samples, 2), 32, shuffle=True),
        DataLoader(make_data(512, 3), 32))
    for epoch in range(resume(accelerator, options.checkpoints), options.epochs):
        loader.set_epoch(epoch)
        for texts, kinds in loader:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(model(texts), kinds))
            optimizer.step()
        say(accelerator, "epoch %d, %.4f are right" % (epoch + 1, right(accelerator, model, test)))
        save(accelerator, options.checkpoints, epoch + 1)
        leave = accelerator.reduce(torch.tensor(float(bool(signals)), device=accelerator.device))
        if leave and epoch + 1 < options.epochs:
            break
    else:
        leave = False
        say(accelerator, "trained on %d ranks" % accelerator.num_processes)
    # DistributedDataParallel is part of a circle of objects; its threads must have ended before the process does
    del model, optimizer
    accelerator.free_memory()
    accelerator.end_training()
    sys.exit(REQUEUE if leave else 0)


if __name__ == '__main__':
    main()
