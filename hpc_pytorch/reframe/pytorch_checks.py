"""
ReFrame checks of the PyTorch modules that this collection has installed: those whose module files are in $MODULEPATH.

`./eb --check` runs them. Beside a site's own: reframe -C SETTINGS -c checks -r -t maintenance, with the partitions that
`./eb --check --settings` prints. What a module must have follows from the easyconfig that it was made from.
"""
import collections
import filecmp
import glob
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
from hpc_pytorch.machine.collection_files import plain_values  # noqa: E402
from hpc_pytorch.machine.module_files import installed  # noqa: E402
from hpc_pytorch.source import contract  # noqa: E402
sys.path.pop()

# What is there is told first: the rest ends where a library is missing.
PROBE = """
import collections, glob, importlib.metadata, os, subprocess
sizes, places = collections.defaultdict(set), {}
for one in importlib.metadata.distributions():
    print('package:', one.metadata['Name'], one.version)
    for file in one.files or []:
        # two packages may have the same file; programs in bin/ may have been replaced by the module's own
        if '..' not in file.parts and '__pycache__' not in file.parts:
            sizes[str(file)].add(file.size)
            places[str(file)] = str(file.locate())
for file, path in sorted(places.items()):
    if not os.path.exists(path) or None not in sizes[file] and os.path.getsize(path) not in sizes[file]:
        print('changed:', file)
""" + contract.PROBE + """
subprocess.run(['ldd'] + glob.glob(os.path.dirname(torch.__file__) + '/lib/*.so'))
"""
CONTAINER, MPI = "'SingularityContainer'", r"'torch_mpi'|'USE_MPI=1'"
# What is typed, where the easyconfig has these words, and what is printed when it works.
Way = collections.namedtuple('Way', 'command needs says')
WAYS = {way: Way('pytorch-check ' + way, needs, '^%s +works' % way) for way, needs in (
    ('import', ''), ('packages', ''), ('gloo', ''), ('mpi4py', "'mpi4py'"), ('mpi', MPI), ('horovod', "'horovod'"),
    ('compile', 'pytorch-check .*compile"'), ('plugin', r"'aws-ofi-\w+'"))}
ONES = """python -c "import os, torch; print(os.environ.get('SINGULARITY_CONTAINER'), torch.ones(1))" """.strip()
WAYS.update({
    'contract': Way('python -c ' + shlex.quote(PROBE), '(?s)^(?!.*%s)' % CONTAINER, '^package: torch '),
    'list-packages': Way('list-packages', CONTAINER, '^torch '),
    'run-in-container': Way('run-in-container ' + ONES, CONTAINER, r'\.sif tensor\(\[1'),
    'wrapper': Way(ONES, r"wrappers = .*'python'", r'\.sif tensor\(\[1'),
})
# The same, started on every rank; on so many nodes.
Speed = collections.namedtuple('Speed', 'command needs nodes')
SPEEDS = {'bandwidth-' + backend: Speed('pytorch-bandwidth %s --from 1M --to 1G' % backend, needs, (1, 2))
          for backend, needs in (('gloo', ''), ('mpi', MPI), ('nccl', ''))}
SPEEDS.update({'train': Speed('pytorch-measure train', '', (1, 2, 4)),
               'start': Speed('pytorch-measure start', '', (1, 2, 4)),
               'start-staged': Speed('pytorch-measure start', "'pytorch-stage'", (1, 2, 4)),
               'checkpoint': Speed('pytorch-measure checkpoint', '', (1, 2))})
# What decides about networks, as the ranks see it.
SETTINGS = 'env | grep -E "^(NCCL|RCCL|FI|MPICH|GLOO|UCX|OMPI_MCA)_" | sort | sed "s/^/setting: /"'

INSTALLED = installed(os.environ.get('MODULEPATH', ''))
# Where copies of an easyconfig's files are, by its parameter.
COPIED = {'scripts': 'bin', 'example_files': 'examples'}


def easyconfig_of(module):
    """The copy of its easyconfig that lies beside the installation."""
    path, = glob.glob(os.path.join(glob.escape(INSTALLED[module]), 'easybuild/provenance/*.eb'))
    return path


def same_as_kept(root, path):
    """Whether a file is still the one that the provenance keeps a copy of."""
    kept = os.path.join(root, 'easybuild/provenance', os.path.basename(path))
    return os.path.exists(path) and (not os.path.exists(kept) or filecmp.cmp(path, kept, shallow=False))


class OfModule(rfm.RunOnlyRegressionTest):
    module = parameter(sorted(INSTALLED))
    valid_prog_environs = ['builtin']
    sourcesdir = os.path.join(os.path.dirname(HERE), 'scripts')
    time_limit = '15m'
    tags = {'production', 'maintenance'}

    def only_where(self, words, *features):
        """The easyconfig has the words, and partitions the features."""
        fits = re.search(words, Path(easyconfig_of(self.module)).read_text(encoding='utf-8'))
        self.modules = [self.module]
        self.valid_systems = [' '.join('+' + one for one in ('hpc_pytorch',) + features)] if fits else []

    def said(self, pattern):
        """All that matches in what was printed; without any the check has failed."""
        texts = []
        for name in (self.stdout, self.stderr):
            texts.append(Path(self.stagedir, str(name)).read_text(errors='replace').strip())
        found = re.findall(pattern, texts[0], re.M)
        if not found:
            text = '\n'.join(texts)
            raise SanityError("nothing like %r in: %s" % (
                pattern, text if len(text) < 2000 else text[:500] + ' ... ' + text[-1500:]))
        return found


@rfm.simple_test
class WorksCheck(OfModule):
    """Import, contract, every backend on two ranks, and a container's run scripts."""
    way = parameter(WAYS)
    tags = {'production', 'maintenance', 'nightly'}

    @run_after('init')
    def type_it(self):
        self.only_where(WAYS[self.way].needs)
        self.executable, self.executable_opts = WAYS[self.way].command.split(' ', 1)[0], [
            WAYS[self.way].command.partition(' ')[2]]

    @run_before('run')
    def two_ranks(self):
        """pytorch-check starts them itself."""
        self.job.launcher = getlauncher('local')()
        self.num_tasks = self.num_tasks_per_node = 2 if 'batch' in self.current_partition.features else 1
        self.num_cpus_per_task = 1

    @sanity_function
    def works(self):
        """It says so; the installation is what it was when it was made."""
        self.said(WAYS[self.way].says)
        if self.way == 'contract':
            changed = self.other_files() or self.other_build()
            if changed:
                raise SanityError("not what was installed:\n%s\nTo install it again: ./eb %s --rebuild" % (
                    '\n'.join(changed), os.path.basename(easyconfig_of(self.module))))
        return True

    def other_files(self):
        """Packages that are gone or have another version, files that pip or the easyconfig's scripts left."""
        root = INSTALLED[self.module]
        with open(os.path.join(root, 'easybuild/provenance/sbom.spdx.json')) as handle:
            listed = {one['name']: one['versionInfo'] for one in json.load(handle)['packages']
                      if one['SPDXID'] != 'SPDXRef-Module'}
        found = dict(self.said(r'^package: (\S+) (\S+)'))
        changed = ['%s: %s was installed, found %s' % (name, version, found.get(name, 'none'))
                   for name, version in sorted(listed.items()) if found.get(name) != version]
        lost = collections.defaultdict(list)
        for package, path in self.said('^changed: ([^/]+)(.*)|$'):
            lost[package].append(package + path)
        changed += ['%s: %d files are gone or changed, such as %s' % (package, len(paths), paths[0])
                    for package, paths in sorted(lost.items()) if package]
        values = plain_values(Path(easyconfig_of(self.module)).read_text(encoding='utf-8'))
        for name, place in COPIED.items():
            paths = [os.path.join(root, place, os.path.basename(word)) for word in values.get(name, [])]
            changed += ["%s is not as it was installed" % path for path in paths if not same_as_kept(root, path)]
        return changed

    def other_build(self):
        """What the note of a wheel that was built here says, and what PyTorch says of itself."""
        note = os.path.join(INSTALLED[self.module], 'wheels', 'provenance.json')
        if not os.path.exists(note):
            return []
        asked = json.loads(Path(note).read_text())['asked']
        found = json.loads(self.said(r'^\{"show".*')[0])
        return [contract.table([one]) for one in contract.compare_installed(
            asked, found['show'], found['backends'], '\n'.join(self.said('.* => .*')))]


@rfm.simple_test
class SpeedCheck(OfModule):
    """Bandwidth through the fast network, training, starting, checkpoints: one rank for each GPU, or node without."""
    what = parameter(SPEEDS)
    nodes = parameter([1, 2, 4])
    ranks_per_node = variable(int, value=0)
    slowest_rank = variable(float, value=0.8)
    references = variable(str, value=os.path.join(HERE, 'references'))
    # by what is measured: further options
    more = variable(typ.Dict[str, str], value={})
    executable = 'pytorch-srun'
    prerun_cmds = [SETTINGS]

    @run_after('init')
    def only_there(self):
        """Several nodes need a batch system, NCCL needs GPUs."""
        speed = SPEEDS[self.what]
        self.only_where(speed.needs, *['batch'] * (self.nodes > 1) + ['gpu'] * ('nccl' in self.what))
        self.valid_systems = self.valid_systems if self.nodes in speed.nodes else []
        self.executable_opts = [speed.command, self.more.get(self.what, '')]
        if self.what == 'start-staged':
            self.prerun_cmds = ['staged=$(pytorch-stage) || exit', 'eval "$staged"']

    @run_before('run')
    def place(self):
        """One rank for each GPU, near it; one rank alone would talk to nobody."""
        self.about = self.current_partition.extras['hpc_pytorch']
        ranks = self.ranks_per_node or self.about['ranks']
        ranks = 2 if ranks * self.nodes == 1 and 'bandwidth' in self.what else ranks
        self.num_tasks, self.num_tasks_per_node = self.nodes * ranks, ranks
        if 'batch' in self.current_partition.features:
            self.num_cpus_per_task = min(self.about['cores_per_rank'], self.about['cores'] // ranks) or 1
            given = {'ranks': ranks, 'cores': self.num_cpus_per_task}
            self.job.launcher.options += [word.format(**given) for word in self.about['launcher_options']]
            self.extra_resources = {'gpus': {'number': self.about['gpus']}} if self.about['gpus'] else {}

    @sanity_function
    def right(self):
        """Results, and what explains a slow one, wherever there is something to compare with."""
        if 'bandwidth' in self.what:
            self.through_the_fast_network(self.what.partition('-')[2])
        elif self.what == 'train':
            self.said('^weights: the same')
            self.evenly([(number, host, {int(core) for core in cores.split(',')}, device, float(speed))
                         for number, host, cores, device, speed in
                         self.said(r'^rank (\d+): on (\S+), cores (\S+), device (\S+), alone (\S+)')])
        elif self.what == 'checkpoint':
            self.said('^checkpoint: as it was')
        return len(self.said('^start import ')) == self.num_tasks if 'start' in self.what else True

    def through_the_fast_network(self, backend):
        """All results are right; what the kernel and NCCL's log say of the way between nodes."""
        lines = self.said(r'^%s +(\w+) .* (yes|NO)$' % backend)
        if {right for _, right in lines} != {'yes'} or len({operation for operation, _ in lines}) < 2:
            raise SanityError("wrong results, see %s/%s" % (self.stagedir, self.stdout))
        fast = self.about['interfaces']
        if self.nodes > 1 and fast:
            used = self.said('^%s between nodes: (.+)' % backend)[-1]
            known = tuple(fast) + ('cxi', 'uverbs', 'OFI', 'InfiniBand')
            if not all(one.startswith(known) for one in used.split(', ')):
                raise SanityError("%s talks through %s, and the fast network is %s. Settings that were seen: %s" % (
                    backend, used, ' '.join(fast), ' '.join(filter(None, self.said('^setting: (.*)|$')))))

    def evenly(self, ranks):
        """No rank alone is slow; each has cores of its own, near its device."""
        typical = statistics.median(rank[-1] for rank in ranks)
        slow = ['rank %s on %s' % rank[:2] for rank in ranks if rank[-1] < self.slowest_rank * typical]
        if slow:
            raise SanityError("slow by itself: %s; samples/s of all: %s" % (
                ', '.join(slow), ' '.join('%.0f' % rank[-1] for rank in ranks)))
        taken, near = {}, self.about['gpu_cores']
        for number, host, cores, device, _ in ranks if 'batch' in self.current_partition.features else []:
            cores = {core % self.about['cores'] for core in cores}
            if near and device.isdigit() and not cores <= set(near[int(device)]):
                raise SanityError("rank %s on %s has device %s, and cores that are not near: %s" % (
                    number, host, device, sorted(cores)))
            if cores & taken.setdefault(host, set()):
                raise SanityError("ranks on %s share cores: %s" % (host, sorted(cores & taken[host])))
            taken[host] |= cores

    def numbers(self):
        """{name: (value, unit)}; of several ranks' seconds the longest counts."""
        found = {name: (float(value), unit) for name, value, unit in sorted(
            self.said(r'^\w+ (import|total|each|write|read) ([\d.]+) (\S+)$'), key=lambda one: float(one[1]))
        } if 'bandwidth' not in self.what else {}
        for operation, size, speed in self.said(r'^\w+ +(all_reduce|broadcast) +\d+ +\w+ +(\d+) +\S+ +\S+ +(\S+)|$'):
            found['%s_%dM' % (operation, int(size or 0) >> 20)] = float(speed or 0), 'GB/s'
        return {name: value for name, value in found.items() if not name.startswith('_')}

    @run_before('performance')
    def compare(self):
        """With the first good run, within the margins; less is worse, but for seconds."""
        numbers = {} if self.is_dry_run() else self.numbers()
        self.perf_variables = {name: sn.make_performance_function(sn.defer(value), unit)
                               for name, (value, unit) in numbers.items()}
        path = self.references
        path = os.path.join(path, self.current_system.name + '.json') if os.path.isdir(path) else path
        if os.path.exists(path):
            known = json.loads(Path(path).read_text())
            before = known['modules'].get(self.module, {}).get(re.sub(' %module=[^ ]+', '', self.display_name), {})
            self.reference = {'*': {name: (
                (before[name], None, known['margins'][unit], unit) if unit == 's' else
                (before[name], -known['margins'][unit], None, unit))
                for name, (_, unit) in numbers.items() if name in before}}
