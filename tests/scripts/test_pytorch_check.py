"""pytorch-check without PyTorch: how long it waits. With it, the tests of the workstation and of each system run it."""
import importlib.machinery
import importlib.util
import os
import subprocess

import pytest
from common import CHECKOUT


@pytest.fixture
def check(monkeypatch):
    """The script as a module, which waits for a fraction of a second on an idle machine."""
    loader = importlib.machinery.SourceFileLoader('pytorch_check', str(CHECKOUT / 'scripts' / 'pytorch-check'))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader('pytorch_check', loader))
    monkeypatch.setattr('sys.dont_write_bytecode', True)
    loader.exec_module(module)
    monkeypatch.setattr(module, 'SECONDS', 0.2)
    return module


def slow():
    """A process that takes its time."""
    return subprocess.Popen(['sh', '-c', 'sleep 2; echo done'], stdout=subprocess.PIPE)


def test_busy_machine(check, monkeypatch):
    """A build of half an hour failed at its end, as two ranks did not start within two minutes."""
    monkeypatch.setattr(os, 'getloadavg', lambda: (1000.0 * os.cpu_count(), 0, 0))
    assert check.finish([slow()]) == 'done\n'


def test_idle_machine(check, monkeypatch):
    """What hangs is ended."""
    monkeypatch.setattr(os, 'getloadavg', lambda: (0.0, 0, 0))
    with pytest.raises(check.Failed, match='no end after'):
        check.finish([slow()])
