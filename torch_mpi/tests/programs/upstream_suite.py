"""PyTorch's own distributed tests, run by real MPI processes on the backend of choice.

The class ships inside every wheel (torch/testing/_internal/distributed/distributed_test.py). Upstream starts its
processes itself; here mpirun has started them, and each runs the tests one after the other, with a fresh default
group for each. The class decides by ``$BACKEND`` which tests to skip: it is told ``gloo``, so that everything gloo
runs is run, and the groups are then made with the backend that was asked for.

    python upstream_suite.py --start "mpirun -n 2" --backend mpi --results DIR [--only PATTERN]

starts it, sees to it that a test which ends the processes only costs that one test, and writes DIR/summary.json.
"""

import argparse
import fnmatch
import functools
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import traceback

PG_TIMEOUT = 30
PASSED, SKIPPED, FAILED, ENDED = "passed", "skipped", "failed", "ended the processes"


def three_are_enough(test):
    """In place of upstream's decorator: newer versions skip the tests of sub-groups below eight processes."""
    @functools.wraps(test)
    def either(*arguments, **options):
        from torch.testing._internal.common_distributed import TEST_SKIPS
        if int(os.environ["WORLD_SIZE"]) < 3:
            sys.exit(TEST_SKIPS["small_worldsize"].exit_code)
        return test(*arguments, **options)
    return either


def load(backend):
    """The upstream module, its decorators deciding as for gloo, its tests using `backend`."""
    os.environ["BACKEND"] = "gloo"
    from torch.testing._internal import common_distributed
    common_distributed.skip_if_small_worldsize = three_are_enough
    from torch.testing._internal.distributed import distributed_test
    distributed_test.BACKEND = backend
    return distributed_test


def make_case(upstream, rank, size, file_name):
    """The upstream tests as a class whose processes exist already."""
    from torch.testing._internal.common_utils import TestCase

    class Case(upstream.DistributedTest._DistTestBase, TestCase):
        @property
        def init_method(self):
            return "file://" + self.file_name

        @property
        def world_size(self):
            return str(size)

    Case.rank, Case.file_name = rank, file_name
    return Case


def test_names(only):
    """The tests of the class, as upstream sorts them."""
    from torch.testing._internal.distributed.distributed_test import DistributedTest
    names = [name for name in dir(DistributedTest._DistTestBase) if name.startswith("test_")]
    return [name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in only)]


class Meeting:
    """Where the ranks meet between tests, independent of what is tested: a file store."""

    def __init__(self, path, rank, size):
        import torch.distributed as dist
        self.store, self.rank, self.size, self.round = dist.FileStore(path, size), rank, size, 0

    def __call__(self, timeout=600):
        self.round += 1
        key = "round%d" % self.round
        self.store.add(key, 1)
        deadline = time.monotonic() + timeout
        while self.store.add(key, 0) < self.size:
            if time.monotonic() > deadline:
                raise RuntimeError("the other ranks did not come")
            time.sleep(0.01)


def run_one(upstream, case_class, name, backend, directory):
    """(status, message) of one test on this rank."""
    import datetime
    import unittest

    import torch.distributed as dist
    from torch.testing._internal.common_distributed import TEST_SKIPS
    skip_codes = {skip.exit_code: skip.message for skip in TEST_SKIPS.values()}
    try:
        # Upstream each test has processes of its own, and some leave the debug level they end with.
        os.environ.pop("TORCH_DISTRIBUTED_DEBUG", None)
        dist.set_debug_level_from_env()
        case = case_class(name)
        dist.init_process_group(
            backend=backend, init_method="file://" + os.path.join(directory, "store_" + name),
            timeout=datetime.timedelta(seconds=upstream.CUSTOM_PG_TIMEOUT.get(name, PG_TIMEOUT)),
            **({} if backend == "mpi" else {"rank": case.rank, "world_size": int(case.world_size)}))
        case.setUp()
        try:
            getattr(case, name)()
        finally:
            case.tearDown()
        return PASSED, ""
    except unittest.SkipTest as error:
        return SKIPPED, str(error)
    except SystemExit as error:
        if error.code in skip_codes:
            return SKIPPED, skip_codes[error.code]
        return FAILED, "exit code %s" % error.code
    except BaseException:
        abort(backend)
        return FAILED, traceback.format_exc()[-3000:]


def abort(backend):
    """A test that failed on this rank: the others must not wait for it."""
    import torch
    import torch.distributed as dist
    if backend == "mpi" and dist.is_initialized():
        dist.group.WORLD._get_backend(torch.device("cpu")).abort()


def rank_main(arguments):
    """What every MPI process does."""
    from mpi_environment import rank_and_size
    rank, size = rank_and_size()
    directory = arguments.results
    os.environ.update(WORLD_SIZE=str(size), TEMP_DIR=directory, INIT_METHOD="env://", MASTER_ADDR="localhost")
    import torch.distributed as dist
    if arguments.backend == "mpi":
        import torch_mpi  # noqa: F401
    upstream = load(arguments.backend)
    results_file = os.path.join(directory, "rank%d.json" % rank)
    results = json.load(open(results_file)) if os.path.exists(results_file) else {}
    meet = Meeting(os.path.join(directory, "meeting_%s" % os.environ["UPSTREAM_TRY"]), rank, size)
    names = [name for name in test_names(arguments.only) if name not in results]
    if rank == 0:
        for part in ("barrier", "test_dir", "init_dir"):
            os.makedirs(os.path.join(directory, part), exist_ok=True)
    meet()
    for name in names:
        results[name] = [ENDED, 0, ""]
        json.dump(results, open(results_file, "w"))
        if rank == 0:
            upstream.Barrier.init()
        upstream.Barrier.barrier_id = 0
        meet()
        start = time.monotonic()
        case = make_case(upstream, rank, size, os.path.join(directory, "file_" + name))
        results[name] = [*run_one(upstream, case, name, arguments.backend, directory), time.monotonic() - start]
        results[name] = [results[name][0], round(results[name][2], 2), results[name][1]]
        json.dump(results, open(results_file, "w"))
        meet()
        if dist.is_initialized():
            try:
                dist.destroy_process_group()
            except Exception:
                dist.distributed_c10d._update_default_pg(None)
                dist.distributed_c10d._world.pg_map.clear()
                dist.distributed_c10d._world.pg_names.clear()
        # A group that one rank could not make is counted on some only, and the next would have names of their own.
        dist.distributed_c10d._world.group_count = 0
    meet()
    open(os.path.join(directory, "complete%d" % rank), "w").close()
    sys.stdout.flush()
    os._exit(0 if arguments.backend == "gloo" else leave())


def leave():
    """Through MPI_Finalize; groups that a test broke on purpose end the processes instead, which is all right here."""
    import atexit
    atexit._run_exitfuncs()
    return 0


def combine(directory, size):
    """The ranks' results as one: a test has passed when it has on all."""
    ranks = [json.load(open(os.path.join(directory, "rank%d.json" % rank))) for rank in range(size)]
    order = [ENDED, FAILED, PASSED, SKIPPED]
    summary = {}
    for name in ranks[0]:
        each = [rank.get(name, [ENDED, 0, ""]) for rank in ranks]
        status = min((one[0] for one in each), key=order.index)
        summary[name] = {"status": status, "seconds": max(one[1] for one in each),
                         "message": "\n".join("rank %d: %s" % (i, one[2]) for i, one in enumerate(each) if one[2])}
    return summary


def run_all(start, backend, directory, only, tries=10, timeout=3000, python=sys.executable, environment=os.environ):
    """Run the suite under mpirun; start again after a test that ended the processes. Returns the summary."""
    os.makedirs(directory, exist_ok=True)
    command = [*start, python, os.path.abspath(__file__), "--rank", "--backend", backend, "--results", directory,
               "--only", *only]
    for attempt in range(tries):
        with open(os.path.join(directory, "output.txt"), "a") as output:
            # A process group of its own, so that nothing of it stays behind.
            process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL,
                                       env=dict(environment, UPSTREAM_TRY=str(attempt)), start_new_session=True)
            try:
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if os.path.exists(os.path.join(directory, "complete0")):
            break
    size = len([name for name in os.listdir(directory) if name.startswith("rank") and name.endswith(".json")])
    summary = combine(directory, size)
    with open(os.path.join(directory, "summary.json"), "w") as out:
        json.dump(summary, out, indent=1, sort_keys=True)
    return summary


def lost(reference, summary):
    """Name → message of the tests that passed in the reference and have not here."""
    return {name: summary[name]["message"] if name in summary else "was not run" for name, one in reference.items()
            if one["status"] == PASSED and summary.get(name, {}).get("status") != PASSED}


def main():
    """Start the suite, or be one of its processes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--start", default="mpirun -n 2", help="starts the processes, e.g. 'mpirun -n 2'")
    parser.add_argument("--backend", default="mpi", choices=["mpi", "gloo"])
    parser.add_argument("--results", default=None, help="directory for the results")
    parser.add_argument("--only", nargs="*", default=["test_*"], help="patterns of test names")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.results = os.path.abspath(arguments.results or tempfile.mkdtemp(prefix="upstream_suite_"))
    if arguments.rank:
        rank_main(arguments)
        return
    summary = run_all(shlex.split(arguments.start), arguments.backend, arguments.results, arguments.only)
    counts = {}
    for name, one in sorted(summary.items()):
        counts[one["status"]] = counts.get(one["status"], 0) + 1
        if one["status"] in (FAILED, ENDED):
            print("%s %s: %s" % (one["status"], name, one["message"].strip().splitlines()[-1:]))
    print(counts)


if __name__ == "__main__":
    main()
