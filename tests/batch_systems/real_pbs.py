"""
A PBS that runs already, in the place of the stand-in: OpenPBS is in no registry, so tests do not start one.

HPC_PBS_PREFIX=/opt/pbs ./test tests/jobs/test_pbs_jobs.py -k chain, in a job's reach of its server; it needs a queue
main, the resource ngpus, and job_history_enable.
"""
import json
import os
import subprocess
from pathlib import Path


class RealPbs:
    """Its commands, and what it says of jobs."""

    def __init__(self, prefix):
        self.path = '%s:%s' % (Path(prefix, 'bin'), os.environ['PATH'])

    @property
    def environment(self):
        found = {'PATH': self.path}
        if 'PBS_CONF_FILE' in os.environ:
            found['PBS_CONF_FILE'] = os.environ['PBS_CONF_FILE']
        return found

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def jobs(self):
        """All that the server knows, by id."""
        done = subprocess.run(['qstat', '-x', '-f', '-F', 'json'], env=dict(os.environ, **self.environment), check=True,
                              stdout=subprocess.PIPE, text=True)
        found = json.loads(done.stdout).get('Jobs', {})
        for facts in found.values():
            facts.update(('Resource_List.' + name, value) for name, value in facts['Resource_List'].items())
        return found
