"""ReFrame checks of the PyTorch modules that this collection has installed, whose module files are in $MODULEPATH.

`./eb --check` runs them. Beside a site's own: reframe -C SETTINGS -c hpc_pytorch/reframe -r -t maintenance, with the
partitions that `./eb --check --settings` prints. What a module must have follows from the easyconfig that it was made
from.
"""
import collections
import glob
import hashlib
import json
import os
import re
import shlex
import statistics
import sys
from pathlib import Path

import reframe as rfm
import reframe.utility.sanity as sn
import reframe.utility.typecheck as typ
from reframe.core.backends import getlauncher
from reframe.core.builtins import parameter, run_after, run_before, sanity_function, variable
from reframe.core.exceptions import SanityError

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.append(os.path.dirname(os.path.dirname(HERE)))
from hpc_pytorch import parse  # noqa: E402
from hpc_pytorch.machine.module_files import installed  # noqa: E402
from hpc_pytorch.share.endings import why  # noqa: E402
from hpc_pytorch.source import contract  # noqa: E402
from hpc_pytorch.source import installed as installed_pytorch  # noqa: E402
sys.path.pop()

INSTALLED = installed(os.environ.get('MODULEPATH', ''))

TABLE = parse(os.path.join(HERE, 'checks.cfg'))
PROBES = {name: TABLE[name] for name in TABLE.sections() if 'prints' in TABLE[name]}
for probe, promised in TABLE['pytorch-check'].items():
    PROBES[probe] = {'command': 'pytorch-check ' + probe, 'promised': promised, 'prints': '^%s +works' % probe}
# what decides about networks, as the ranks see it
SETTINGS = 'env | grep -E "^(NCCL|RCCL|FI|MPICH|GLOO|UCX|OMPI_MCA)_" | sort | sed "s/^/setting: /"'
# outputs of ranks are kept in files next to the job's, as Slurm loses last lines of a step that it ends
KEEP_OUTPUTS = 'export HPC_RANK_OUTPUTS="$PWD/%s"; mkdir "$HPC_RANK_OUTPUTS"'
# the words of Lmod, and of Environment Modules
NOT_LOADED = re.compile(r'(?<=Lmod has detected the following error: ).+(\n.+)*|Unable to locate a modulefile for .*')
# kinds of fast networks, by device or as NCCL's log names them
FAST = ('cxi', 'uverbs', 'OFI', 'InfiniBand')


def easyconfig_of(module):
    path, = glob.glob(os.path.join(glob.escape(INSTALLED[module]), 'easybuild/provenance/*.eb'))
    return path


class ModuleCheck(rfm.RunOnlyRegressionTest):
    module = parameter(sorted(INSTALLED))
    valid_prog_environs = ['builtin']
    time_limit = '15m'
    tags = {'production', 'maintenance'}
    references = variable(str, value=os.path.join(HERE, 'references'))

    def promises(self, words):
        return re.search(words, Path(easyconfig_of(self.module)).read_text(encoding='utf-8'))

    def need(self, promised, *features):
        """Check only where the easyconfig has these words, and the partition these features."""
        self.modules = [self.module]
        self.valid_systems = []
        if self.promises(promised):
            self.valid_systems = [' '.join('+' + one for one in ('hpc_pytorch',) + features)]

    def place(self, nodes, ranks):
        """Take so many ranks on each node, near its GPUs."""
        self.facts = self.current_partition.extras['hpc_pytorch']
        self.num_tasks = nodes * ranks
        self.num_tasks_per_node = ranks
        if 'batch' in self.current_partition.features:
            share = self.facts['cores'] // ranks
            self.num_cpus_per_task = min(self.facts['cores_per_rank'], share) or 1
            binding = self.facts['binding'].format(per_node=ranks, cores=self.num_cpus_per_task)
            self.job.launcher.options += binding.split()
            if self.facts['gpus']:
                self.extra_resources = {'gpus': {'number': self.facts['gpus']}}

    def output(self, name):
        return Path(self.stagedir, str(name)).read_text(errors='replace').strip()

    def printed(self, pattern):
        return re.findall(pattern, self.output(self.stdout), re.M)

    def must_print(self, pattern):
        """Return all matches in the output; without any the check has failed."""
        found = self.printed(pattern)
        errors = self.output(self.stderr)
        refused = NOT_LOADED.search(errors)
        if not found and refused:
            raise SanityError("the module cannot be loaded: %s" % ' '.join(refused.group().split()))
        missing = re.search(r'(\S+): (command )?not found', errors)
        if not found and missing:
            raise SanityError("%s was not found: does the module still set PATH?" % missing.group(1))
        if not found:
            text = '%s\n%s' % (self.output(self.stdout), errors)
            ends = '\n'.join(why(os.path.join(self.stagedir, str(self.stdout)), [text]))
            raise SanityError("nothing like %r in: %s\n%s" % (pattern, text[-2000:], ends))
        return found

    @run_before('performance')
    def compare(self):
        """Compare with the references, within the margins; less is worse, but for seconds."""
        values = {} if self.is_dry_run() else self.values()
        self.perf_variables = {name: sn.make_performance_function(sn.defer(value), unit)
                               for name, (value, unit) in values.items()}
        path = self.references
        if os.path.isdir(path):
            path = os.path.join(path, self.current_system.name + '.json')
        if not os.path.exists(path):
            return
        known = json.loads(Path(path).read_text())
        name = re.sub(' %module=[^ ]+', '', self.display_name)
        check = known['modules'].get(self.module, {}).get(name, {'values': {}})
        limits = {}
        for key, (reference, unit) in check['values'].items():
            margin = known['margins'][unit]
            lower, upper = (None, margin) if unit == 's' else (-margin, None)
            if key in values:
                limits[key] = (reference, lower, upper, unit)
        self.reference = {'*': limits}


@rfm.simple_test
class WorksCheck(ModuleCheck):
    """Import, contract, every backend on two ranks, and a container's scripts."""
    probe = parameter(PROBES)
    tags = {'production', 'maintenance', 'nightly'}

    @run_after('init')
    def prepare(self):
        probe = PROBES[self.probe]
        self.need(probe['promised'])
        self.executable, _, options = probe['command'].partition(' ')
        self.executable_opts = [options.replace('{probe}', shlex.quote(installed_pytorch.PROBE))]

    @run_before('run')
    def take_two_ranks(self):
        """pytorch-check starts them itself; the plugin is tried on two nodes, as one alone may have no fast network."""
        batch = 'batch' in self.current_partition.features
        if batch and self.probe == 'plugin':
            self.place(2, 1)
        else:
            self.place(1, 2 if batch else 1)
            self.job.launcher = getlauncher('local')()

    @sanity_function
    def works(self):
        self.must_print(PROBES[self.probe]['prints'])
        # on one of the plugin's two nodes
        for reason in self.printed(r'^\w+ +FAILS: .*'):
            raise SanityError(reason)
        if self.probe == 'contract':
            self.check_contract()
        return True

    def values(self):
        """Return what was measured: {name: (value, unit)}."""
        found = {}
        for first, speed in self.printed(r'first token after (\S+) s, then (\S+) tokens/s'):
            found = {'first_token': (float(first), 's'), 'tokens': (float(speed), 'tokens/s')}
        return found

    def check_contract(self):
        """Check that the installation is unchanged; only then its PyTorch can be asked."""
        changed = self.other_packages() + self.lost_files() + self.changed_module()
        changed = changed or self.other_build()
        if changed:
            raise SanityError("not what was installed:\n%s\nTo install it again: ./eb %s --rebuild --installpath=%s" % (
                '\n'.join(changed), Path(easyconfig_of(self.module)).name, Path(INSTALLED[self.module]).parents[2]))

    def other_packages(self):
        """Packages that are gone, were added or have another version than was installed, where that was noted."""
        root = INSTALLED[self.module]
        noted = json.loads(Path(root, 'easybuild/provenance/provenance.json').read_text()).get('packages', {})
        printed = self.printed(r'^package: (\S+) (\S+) (.*)')
        # of what the module below has, too, its own comes first
        found = {name: version for name, version, _ in reversed(printed)}
        added = {name for name, _, place in printed if noted and place.startswith(root + '/')} - set(noted)
        return sorted('%s: %s was installed, found %s' % (name, noted.get(name, 'none'), found.get(name, 'none'))
                      for name in added.union(noted) if found.get(name) != noted.get(name))

    def lost_files(self):
        lost = collections.defaultdict(list)
        for path in self.printed('^changed: (.*)'):
            lost[path.split('/')[0]].append(path)
        return ['%s: %d files are gone or changed, such as %s' % (package, len(paths), paths[0])
                for package, paths in sorted(lost.items())]

    def changed_module(self):
        note = Path(INSTALLED[self.module], 'easybuild/provenance/module.json')
        noted = json.loads(note.read_text()) if note.exists() else {}
        return ["%s is not as it was written (to write it alone: --module-only --force)" % path
                for path, digest in noted.items()
                if not os.path.exists(path) or hashlib.sha256(Path(path).read_bytes()).hexdigest() != digest]

    def other_build(self):
        """Return the options that a wheel was built with, and PyTorch lacks."""
        note = Path(INSTALLED[self.module], 'wheels/provenance.json')
        if not note.exists():
            return []
        asked = json.loads(note.read_text())['asked']
        found = json.loads(self.must_print(r'^\{"show".*')[0])
        libraries = '\n'.join(self.must_print('.* => .*'))
        differences = installed_pytorch.compare_installed(asked, found['show'], found['backends'], libraries)
        return [contract.table([one]) for one in differences]


@rfm.simple_test
class SpeedCheck(ModuleCheck):
    """Bandwidth through the fast network, training: one rank for each GPU, or node without."""
    what = parameter(name for name in TABLE.sections() if 'nodes' in TABLE[name])
    nodes = parameter([1, 2, 4])
    ranks_per_node = variable(int, value=0)
    slowest_rank = variable(float, value=0.8)
    # by what is measured: further options
    more = variable(typ.Dict[str, str], value={})
    executable = 'pytorch-srun'

    @run_after('init')
    def prepare(self):
        measure = TABLE[self.what]
        features = ['batch'] * (self.nodes > 1) + ['gpu'] * ('nccl' in self.what)
        self.need(measure['promised'], *features)
        if str(self.nodes) not in measure['nodes'].split():
            self.valid_systems = []
        self.executable_opts = [measure['command'], self.more.get(self.what, '')]
        if 'bandwidth' in self.what:
            self.sourcesdir = os.path.join(os.path.dirname(HERE), 'scripts')

    @run_before('run')
    def take_ranks(self):
        """Take a rank for each GPU; one rank alone would talk to nobody."""
        ranks = self.ranks_per_node or self.current_partition.extras['hpc_pytorch']['gpus'] or 1
        if ranks * self.nodes == 1 and 'bandwidth' in self.what:
            ranks = 2
        self.prerun_cmds = [SETTINGS, KEEP_OUTPUTS % os.path.splitext(self.job.stdout)[0]]
        self.place(self.nodes, ranks)

    def measured(self):
        return json.loads(self.must_print('^measured: (.*)')[0])

    @sanity_function
    def is_right(self):
        """Results, and what explains a slow one, wherever there is something to compare with."""
        if 'bandwidth' in self.what:
            self.check_bandwidth(self.what.partition('-')[2])
            return True
        result = self.measured()
        if not result['right']:
            raise SanityError("wrong results: ranks have other weights")
        if self.facts['gpus'] and not result['gpu'] and self.promises(TABLE['bandwidth-nccl']['promised']):
            raise SanityError("PyTorch sees no GPU, and trained on CPUs")
        self.check_ranks(result['ranks'])
        return True

    def check_bandwidth(self, backend):
        """Check all results, and in the kernel or NCCL's log that nodes use the fast network."""
        lines = self.must_print(r'^%s +(\w+) .* (yes|NO)$' % backend)
        operations, rights = map(set, zip(*lines))
        if rights != {'yes'} or len(operations) < 2:
            raise SanityError("wrong results, see %s/%s" % (self.stagedir, self.stdout))
        interfaces = tuple(self.facts['interfaces'])
        if self.nodes > 1 and interfaces:
            used = self.must_print('^%s between nodes: (.+)' % backend)[-1]
            slow = [one for one in used.split(', ') if not one.startswith(interfaces + FAST) or 'provider tcp' in one]
            if slow:
                raise SanityError("%s talks through %s, and the fast network is %s. Settings that were seen: %s" % (
                    backend, used, ' '.join(interfaces), ' '.join(self.printed('^setting: (.*)'))))

    def check_ranks(self, ranks):
        speeds = [rank['speed'] for rank in ranks]
        limit = self.slowest_rank * statistics.median(speeds or [0])
        slow = ['rank %(rank)s on %(host)s' % rank for rank in ranks if rank['speed'] < limit]
        if slow:
            all_speeds = ' '.join('%.0f' % speed for speed in speeds)
            raise SanityError("slow by itself: %s; samples/s of all: %s" % (', '.join(slow), all_speeds))
        if 'batch' in self.current_partition.features and 'bind-to none' not in self.facts['binding']:
            self.check_cores(ranks)

    def check_cores(self, ranks):
        near = self.facts['gpu_cores']
        taken = collections.defaultdict(set)
        for rank in ranks:
            host, device = rank['host'], rank['device']
            cores = {core % self.facts['cores'] for core in rank['cores']}
            if near and device.isdigit() and not cores <= set(near[int(device)]):
                raise SanityError("rank %s on %s has device %s, and cores that are not near: %s" % (
                    rank['rank'], host, device, sorted(cores)))
            shared = cores & taken[host]
            if shared:
                raise SanityError("ranks on %s share cores: %s" % (host, sorted(shared)))
            taken[host] |= cores

    def values(self):
        if 'bandwidth' in self.what:
            lines = self.printed(r'^\w+ +(all_reduce|broadcast) +\d+ +\w+ +(\d+) +\S+ +\S+ +(\S+)')
            return {'%s_%dM' % (operation, int(size) >> 20): (float(speed), 'GB/s') for operation, size, speed in lines}
        result = self.measured()
        return {name: (value, result['unit']) for name, value in result['values'].items()}
