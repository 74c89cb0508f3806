"""The tests of torch.distributed that wheels have, run as test/distributed/test_distributed_spawn.py does it."""
from torch.testing._internal.common_utils import run_tests
from torch.testing._internal.distributed import distributed_test


class TestDistBackendWithSpawn(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    """Each test in processes of its own."""

    def setUp(self):
        super().setUp()
        self._spawn_processes()


if __name__ == '__main__':
    run_tests()
