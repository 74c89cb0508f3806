"""Registers torch_mpi when torch.distributed is imported, for torch before 2.5, which has no entry point for it.

Imported by torch_mpi.pth at the start of every Python, so it does next to nothing.
"""

import os
import sys


class _Hook:
    """Stands before the other finders until the module has been imported."""

    def find_spec(self, name, path=None, target=None):
        """Let the others find it, then do something after it has been executed."""
        if name != "torch.distributed":
            return None
        sys.meta_path.remove(self)
        from importlib.util import find_spec
        spec = find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            sys.modules["torch"].__dict__.setdefault("distributed", module)
            import torch_mpi  # noqa: F401
        spec.loader.exec_module = exec_module
        return spec


if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") != "0":
    sys.meta_path.insert(0, _Hook())
