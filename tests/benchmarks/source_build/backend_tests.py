"""
PyTorch's own tests of what torch.distributed's backends have in common, with $BACKEND, in each rank of mpiexec.

PyTorch's runner starts processes anew for each test, which takes hours on two cores, and has left out mpi since
Python 3.9.
"""
import os
import re

import torch.distributed as dist
from torch.testing._internal.common_utils import TestCase
from torch.testing._internal.distributed.distributed_test import Barrier, DistributedTest

# on the CPU, and without what says that it is for another backend
WANTED = re.compile(r'test_(barrier|broadcast|reduce|all_reduce|gather|scatter|all_gather|all_to_all|send_recv|isend|'
                    r'irecv)(_single_equal_split|_single_unequal_split)?(_group|_full_group)?'
                    r'(_sum|_product|_min|_max|_with_tag|_any_source|_twice|_checks)*$')
# what hangs: new_group with a part of the ranks (pytorch/pytorch#142095)
UNWANTED = re.compile('(?<!_full)_group' if os.environ['BACKEND'] == 'mpi' else '(?!)')

if os.environ['BACKEND'] == 'mpi':
    dist.init_process_group('mpi')
else:
    dist.init_process_group(os.environ['BACKEND'], init_method='file://%s/meeting' % os.environ['TEMP_DIR'],
                            rank=int(os.environ['OMPI_COMM_WORLD_RANK']), world_size=int(os.environ['WORLD_SIZE']))
# the tests of groups ask for eight, and use ranks 1 and 2
os.environ['WORLD_SIZE'] = '8'


class TestBackend(TestCase, DistributedTest._DistTestBase):
    rank = dist.get_rank()
    world_size = dist.get_world_size()

    def _barrier(self, *words, timeout=300, **options):
        """Wait for the others for longer than their 10 s, which are too few on a machine with other work."""
        Barrier.sync(*words, timeout=timeout, **options)


for name in dir(TestBackend):
    if name.startswith('test_') and (UNWANTED.search(name) or not WANTED.match(name)):
        # pytest takes what can be called
        setattr(TestBackend, name, None)
