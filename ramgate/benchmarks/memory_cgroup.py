"""A memory cgroup with a limit, for benchmarks and tests; as root."""
import os
import time

from ramgate.limits import Cgroup, Problem, mounts


class MemoryCgroup(Cgroup):
    """Made at once, and removed with all of its processes by close()."""

    def __init__(self, limit):
        version, mount, _ = min(mounts(), default=(0, '', ''))
        if not version:
            raise Problem('no memory cgroup is mounted here')
        super().__init__(os.path.join(mount, 'ramgate-%d' % os.getpid()), version)
        try:
            os.mkdir(self.directory)
            for name in {1: ('memory.limit_in_bytes', 'memory.memsw.limit_in_bytes'), 2: ('memory.max',)}[version]:
                # a kernel may not account for swap
                if 'memsw' not in name or os.path.exists(self.file(name)):
                    with open(self.file(name), 'w') as file:
                        file.write(str(limit))
        except OSError as error:
            raise Problem('it takes root and a memory cgroup that it may write: %s' % error)

    def file(self, name):
        return os.path.join(self.directory, name)

    def processes(self):
        with open(self.file('cgroup.procs')) as file:
            return [int(line) for line in file]

    def close(self):
        for _ in range(500):
            try:
                for pid in self.processes():
                    os.kill(pid, 9)
                os.rmdir(self.directory)
                return
            except OSError:
                time.sleep(0.02)
