"""Why a job failed: which rank was the first, and what stands in the outputs."""
import glob
import os
import re

# What pytorch-srun says of a rank that failed, and what stands in the output of those that failed for known reasons.
RANK = re.compile(r'^\S+: rank (\d+) on (\S+) ended with status (\d+) at (\S*)$', re.M)
REASONS = (
    (r'(CUDA|HIP) out of memory', "the memory of a GPU was full: make batches smaller, or use more GPUs"),
    (r'oom[-_]kill|Out Of Memory', "the memory of a node was full: load less at once, or use more nodes"),
    (r'Watchdog caught collective operation timeout', "a collective timed out waiting for a rank: read its output"),
    (r'DUE TO NODE FAILURE', "a node was lost: submit the job again"),
    (r'pytorch-serve: FAILS: (.*)', '{0}'),
)
# what pytorch-srun says, while the job runs, of a rank that does not move
STANDS = re.compile(r'^\S+: (rank \d+ on \S+ stands still: .*)', re.M)
# statuses of ranks that have not failed
WELL = ('0', '85')
EXCEPTION = r'^(?:\[rank%s\]: ?)?([\w.]+(?:Error|Exception|Interrupt)\b.*)$'
# bytes at the end of the output in which they are looked for; a rank's own last line is shorter
TAIL, LINE = 1000000, 4000


def read_tail(path, size=TAIL):
    with open(path, 'rb') as handle:
        handle.seek(max(os.path.getsize(path) - size, 0))
        return handle.read().decode(errors='replace')


def find_reasons(texts, rank):
    """Known reasons in the first text that has any, or its last exception."""
    for text in texts:
        found = [(re.search(pattern, text), reason) for pattern, reason in REASONS]
        known = [reason.format(*match.groups()) for match, reason in found if match]
        if known:
            return known
        exceptions = re.findall(EXCEPTION % rank, text, re.M)
        if exceptions:
            return exceptions[-1:]
    return []


def directory_of(output):
    """Return the directory of the ranks' outputs, next to the job's; of a requeued job, the last."""
    base = output[:-len('.out')]
    found = filter(os.path.isdir, [base] + glob.glob(glob.escape(base) + '.*'))
    return max(found, key=os.path.getmtime, default=base)


def why(output, texts):
    """Lines on the rank that failed first, who had left before it, and the reason, as far as the outputs tell."""
    directory = directory_of(output)
    files = glob.glob(os.path.join(glob.escape(directory), 'rank-*.out'))
    last_lines = '\n'.join(read_tail(path, LINE) for path in files)
    ended = sorted(RANK.findall(last_lines or ''.join(texts)), key=lambda found: found[-1])
    failed = [found for found in ended if found[2] not in WELL]
    rank = r'\d+'
    if failed:
        rank, host, code, time = failed[0]
        yield "rank %s on %s ended first, with status %s" % (rank, host, code)
        left = [found for found in ended if found[2] in WELL and found[3] < time]
        if left:
            few = ', '.join(found[0] for found in left[:8])
            yield "rank %s had left well before that (such as rank %s on %s, with status %s): was it waited for?" % (
                few, *left[0][:3])
        own = os.path.join(directory, 'rank-%s.out' % rank)
        if own in files:
            texts = [read_tail(own)] + texts
    for text in texts:
        yield from dict.fromkeys(STANDS.findall(text))
    yield from find_reasons(texts, rank)
    if glob.glob(os.path.join(glob.escape(directory), 'nccl-trace-*')):
        yield "ranks that did not reach a collective: torchfrtrace --allow-incomplete-ranks -p nccl-trace- " + directory
    if files:
        yield "what each rank printed: %s" % os.path.join(directory, 'rank-*.out')
