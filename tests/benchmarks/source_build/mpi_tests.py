"""
PyTorch's own tests of what torch.distributed's backends have in common, with the mpi backend, in each rank of mpiexec.
PyTorch's runner has left them out since Python 3.9.
"""
import re

import torch.distributed as dist
from torch.testing._internal.common_utils import TestCase
from torch.testing._internal.distributed.distributed_test import DistributedTest

# on the CPU, and without what says that it is for another backend
WANTED = re.compile(r'test_(barrier|broadcast|reduce|all_reduce|gather|scatter|all_gather|all_to_all|send_recv|isend|'
                    r'irecv)(_single_equal_split|_single_unequal_split)?(_group|_full_group)?'
                    r'(_sum|_product|_min|_max|_with_tag|_any_source|_twice|_checks)*$')

dist.init_process_group('mpi')


class TestMPI(TestCase, DistributedTest._DistTestBase):
    rank = dist.get_rank()
    world_size = dist.get_world_size()


for name in dir(TestMPI):
    if name.startswith('test_') and not WANTED.match(name):
        # pytest takes what can be called
        setattr(TestMPI, name, None)
