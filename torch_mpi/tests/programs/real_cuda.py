"""What gpu_tensors.py asks of a device, of a real one."""

import torch


def use_stream(number):
    """The stream of this program's thread: the first one, or another."""
    if number:
        torch.cuda.set_stream(torch.cuda.Stream())


def peek(tensor):
    """Its contents now, as another stream sees them, which waits for nobody."""
    with torch.cuda.stream(torch.cuda.Stream()):
        return tensor.cpu()


def pinned_allocations():
    """How many there were, of memory that was used before, too; torch counts them from 2.8 on."""
    counted = torch.cuda.host_memory_stats()
    return next(counted[name] for name in ("active_requests.allocated", "allocation.allocated") if name in counted)
