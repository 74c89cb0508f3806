"""The store of a default group of MPI: torch gives it none, but groups of other backends beside it need one."""

from torch.distributed import Store, TCPStore, distributed_c10d

from ._process import MPIUnavailable
from ._rendezvous import tcp_store


class MeetingStore(Store):
    """A TCPStore from the first group on that needs it: most programs make none, and open no port.

    That group is the moment at which all ranks call, so that MPI can tell them where the first one listens.
    """

    current = None

    def __init__(self):
        super().__init__()
        self.store: TCPStore = None
        MeetingStore.current = self

    @classmethod
    def of_default_group(cls, call):
        """Return the TCPStore, which is made now unless there is one. `call`: the arguments of new_group."""
        if cls.current.store is None:
            if call.get("use_local_synchronization"):
                raise MPIUnavailable(
                    "torch_mpi: the first group of another backend beside a default group of mpi takes all ranks: make "
                    "one without use_local_synchronization before, for example new_group(backend=\"gloo\")")
            cls.current.store = tcp_store(call.get("timeout") or distributed_c10d.default_pg_timeout)
        return cls.current.store


def forwarded(name):
    """Return a method that has the TCPStore do it."""
    def method(self, *arguments):
        if self.store is None:
            raise RuntimeError(
                "torch_mpi: a default group of mpi has no store before a group of another backend is made")
        return getattr(self.store, name)(*arguments)
    return method


for _name in ("add", "append", "check", "compare_set", "delete_key", "get", "multi_get", "multi_set", "num_keys", "set",
              "wait"):
    if hasattr(TCPStore, _name):
        setattr(MeetingStore, _name, forwarded(_name))
