"""Why a job failed: which rank was the first, and what the outputs report."""
import configparser
import contextlib
import glob
import os
import pickle
import re

ERRORS = configparser.ConfigParser(interpolation=None)
ERRORS.read(os.path.join(os.path.dirname(os.path.realpath(__file__)), 'rank_errors.cfg'), encoding='utf-8')
# what pytorch-srun says of a rank that failed, perhaps behind a progress bar that has ended no line, as all of these
RANK = re.compile(r': rank (\d+) on (\S+) ended with status (\d+) at (\S*)$', re.M)
# what pytorch-srun says, while the job runs, of a rank that does not move
STANDS = re.compile(r': (rank \d+ on \S+ makes no progress: .*)', re.M)
# what srun says of a rank that is killed with its pytorch-srun, which can say nothing then
KILLED = re.compile(r'srun: error: (\S+): tasks? (\d+)[\d,-]*: Killed$', re.M)
# what Slurm says itself, such as that memory has run out: it counts more than what a rank raises for it, or has caught
SLURM = re.compile(r'(?:slurmstepd\S*|srun): error: .*')
# statuses of ranks that have not failed
WELL = ('0', '85')
# the end of a traceback, whatever the exception's name, or a line with a usual name
EXCEPTION = (r'(?:\[rank{0}\]: ?)?Traceback .*\n(?:(?:\[rank{0}\]: )? .*\n)+(?:\[rank{0}\]: )?([\w.]+(?::.*)?)$|'
             r'^(?:\[rank{0}\]: ?)?([\w.]+(?:Error|Exception|Interrupt)\b.*)$')
# what a rank raises that has lost another; it may end before that one, whose connections close first
LOST = re.compile(r'closed by (remote )?peer|reset by peer|Broken pipe|remote process exit')
# bytes at the end of the output in which they are looked for; a rank's own last line is shorter
TAIL, LINE = 1000000, 4000


def read_tail(path, size=TAIL):
    with open(path, 'rb') as handle:
        handle.seek(max(os.path.getsize(path) - size, 0))
        return handle.read().decode(errors='replace')


class PlainUnpickler(pickle.Unpickler):
    """For pickles of plain values: whatever else is in one could run anything."""

    def find_class(self, module, name):
        raise pickle.UnpicklingError("%s.%s is no plain value" % (module, name))


def name_ranks(ranks):
    ranks = sorted(ranks)
    few = ', '.join(map(str, ranks[:8]))
    return few if len(ranks) <= 8 else '%s and %d more' % (few, len(ranks) - 8)


def read_recorders(directory):
    """Read the flight recorders of ranks: {rank: (status of groups, entries)}."""
    dumps = {}
    for path in glob.glob(os.path.join(glob.escape(directory), 'nccl-trace-*')):
        # who was killed may have written half of it, and an old PyTorch writes no status
        with contextlib.suppress(Exception), open(path, 'rb') as handle:
            dump = PlainUnpickler(handle).load()
            dumps[int(path.rpartition('-')[2])] = dump['pg_status'], dump['entries']
    return dumps


def missed_collectives(directory):
    """Yield for each group of ranks the first collective that some of them did not reach."""
    reached, begun = {}, {}
    for rank, (groups, entries) in read_recorders(directory).items():
        for group, status in groups.items():
            reached.setdefault(group, {})[rank] = max(status['last_enqueued_collective'], 0)
        for entry in entries:
            if not entry.get('is_p2p'):
                begun[entry['process_group'][0], entry['collective_seq_id']] = entry
    for group, numbers in sorted(reached.items()):
        number = min(numbers.values()) + 1
        late = [rank for rank in numbers if numbers[rank] < number]
        waiting = [rank for rank in numbers if numbers[rank] >= number]
        entry = begun.get((group, number))
        if waiting and entry:
            operation = entry['profiling_name'].split(':')[-1]
            yield "rank %s did not reach collective %d of %s, %s; rank %s waited in it%s" % (
                name_ranks(late), number, entry['process_group'][1], operation, name_ranks(waiting), place_of(entry))


def place_of(entry):
    """Return where the program began a collective: the innermost frame that is no package's."""
    own = [frame for frame in entry['frames'] if '-packages/' not in frame['filename']]
    return ", at %(filename)s, line %(line)s" % own[0] if own else ''


def exceptions_of(rank, text):
    return [last or line for last, line in re.findall(EXCEPTION.format(rank), text, re.M)]


def find_reasons(texts, rank):
    """Return known reasons in the first text that has any, or its last exception."""
    for text in texts:
        found = [(re.search(row['pattern'], text), row['reason']) for row in map(ERRORS.__getitem__, ERRORS.sections())]
        known = [reason.format(*match.groups()) for match, reason in found if match]
        reasons = known or exceptions_of(rank, text)[-1:]
        if reasons:
            return reasons
    return []


def directory_of(output):
    """Return the directory of the ranks' outputs, next to the job's; of a requeued job, the last."""
    base = output[:-len('.out')]
    found = filter(os.path.isdir, [base] + glob.glob(glob.escape(base) + '.*'))
    return max(found, key=os.path.getmtime, default=base)


def follows_another(text, rank, status):
    """Tell whether a rank, by its own output, only failed as another had: it lost that one, or was told to end."""
    exceptions = exceptions_of(rank, text)
    return bool(LOST.search(exceptions[-1])) if exceptions else status == '143'


def why(output, texts):
    """Yield lines on the rank that failed first, who had left before it, and the reason, as far as the outputs tell."""
    directory = directory_of(output)
    files = glob.glob(os.path.join(glob.escape(directory), 'rank-*.out'))
    last_lines = {os.path.basename(path): read_tail(path, LINE) for path in files}
    ended = sorted(RANK.findall('\n'.join(last_lines.values()) or ''.join(texts)), key=lambda found: found[-1])
    failed = [found for found in ended if found[2] not in WELL]
    if not failed or failed[0][2] == '143':
        # the others were only told to end, unless all were, or one could not be started
        before = re.split(' CANCELLED AT | launch .*failed', ''.join(texts))[0]
        failed = [(rank, host, '137', '') for host, rank in KILLED.findall(before)] + failed
    rank = r'\d+'
    if failed:
        rank, host, code, time = min(failed, key=lambda found: follows_another(
            last_lines.get('rank-%s.out' % found[0], ''), found[0], found[2]))
        yield "rank %s on %s failed first, with status %s" % (rank, host, code)
        left = [found for found in ended if found[2] in WELL and found[3] < time]
        if left:
            yield "rank %s had ended before that (rank %s on %s, with status %s): did the others wait for it?" % (
                name_ranks(int(found[0]) for found in left), *left[0][:3])
        own = os.path.join(directory, 'rank-%s.out' % rank)
        if own in files:
            texts = [read_tail(own)] + texts
    for text in texts:
        yield from dict.fromkeys(STANDS.findall(text))
    yield from find_reasons(['\n'.join(SLURM.findall(''.join(texts)))] + texts, rank)
    yield from missed_collectives(directory)
    if files:
        yield "output of each rank: %s" % os.path.join(directory, 'rank-*.out')
