#!/usr/bin/env python3
"""
Training with Lightning: an example to start from.

    pytorch-run --nodes 2 --requeue 5 train_lightning.py --epochs 10

Started again, it goes on from the last checkpoint. SIGUSR1 and SIGTERM make it save and end with status 85, on which
the job script requeues it. How many nodes and ranks there are, Lightning learns from pytorch-srun.
"""
import argparse
import os
import signal
import sys

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

REQUEUE = 85
signals = []


class Model(lightning.LightningModule):
    """Learns the sine of a sum."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(16, 64),
            nn.ReLU(),
            nn.Linear(64, 1),
        )

    def training_step(self, batch, _):
        loss = nn.functional.mse_loss(self.layers(batch[0]), batch[1])
        self.log('loss', loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Leave(lightning.Callback):
    """Ends the training when any rank was asked to; prints its progress."""

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step % 10 == 0:
            trainer.should_stop = trainer.strategy.reduce_boolean_decision(bool(signals), all=False)

    def on_train_epoch_end(self, trainer, *_):
        if trainer.is_global_zero:
            print("epoch %d, loss %.6f" % (trainer.current_epoch + 1, trainer.callback_metrics['loss']), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--epochs', type=int, default=10)
    parser.add_argument('--samples', type=int, default=2048)
    parser.add_argument('--checkpoints', default='lightning', metavar='DIRECTORY')
    options = parser.parse_args()
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, lambda *_: signals.append(True))
    lightning.seed_everything(1)
    inputs = torch.rand(options.samples, 16)
    data = TensorDataset(inputs, torch.sin(inputs.sum(dim=1, keepdim=True)))
    last = os.path.join(options.checkpoints, 'last.ckpt')
    checkpoints = ModelCheckpoint(options.checkpoints, save_last=True, every_n_epochs=1)
    trainer = lightning.Trainer(
        num_nodes=int(os.environ['GROUP_WORLD_SIZE']),
        devices=int(os.environ['LOCAL_WORLD_SIZE']),
        strategy='ddp',
        max_epochs=options.epochs,
        logger=False,
        enable_progress_bar=False,
        callbacks=[Leave(), checkpoints],
    )
    loader = DataLoader(data, 32, shuffle=True)
    trainer.fit(Model(), loader, ckpt_path=last if os.path.exists(last) else None)
    done = trainer.current_epoch >= options.epochs
    if trainer.is_global_zero and done:
        print("trained on %d ranks" % trainer.world_size, flush=True)
    # its threads must have ended before the process does
    torch.distributed.destroy_process_group()
    sys.exit(0 if done else REQUEUE)


if __name__ == '__main__':
    main()
