"""Copy the torch of the image into the virtual environment, where pip would have put another one."""
import importlib.util
import os
import shutil
import sysconfig

origin = os.path.dirname(importlib.util.find_spec('torch').origin)
target = os.path.join(sysconfig.get_path('purelib'), 'torch')
if origin != target:
    shutil.copytree(origin, target)
