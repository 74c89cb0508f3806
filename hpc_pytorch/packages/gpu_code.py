"""Whether what was compiled for GPUs runs on a GPU: NVIDIA's rules, and AMD's only one, that it is the same."""
import re

from hpc_pytorch.machine.versions import release, satisfies

# for processors alone
CPU = 'cpu'
# what a wheel has code for; torch.cuda.get_arch_list() says nothing where there is no GPU
PROBE = """
import torch
made_for = getattr(torch, 'version', None)
without = [getattr(made_for, name, '') for name in ('cuda', 'hip')] == [None, None]
print(torch.__version__, %r if without else getattr(torch._C, '_cuda_getArchFlags', str)() or '')
""" % CPU


def runs_on(code, gpu):
    """True if code (sm_80, compute_90, gfx90a) runs on a GPU (8.6, 9.0+PTX, gfx90a)."""
    made_for = re.match(r'(sm|compute)_(\d+)(\d)([a-z]?)$', code)
    there = re.match(r'(\d+)\.(\d+)', gpu)
    if not made_for or not there:
        return code.split(':')[0] == gpu
    kind, major, minor, letter = made_for.groups()
    least = int(major), int(minor)
    there = tuple(map(int, there.groups()))
    if letter == 'a':
        return there == least
    # machine code is for one generation, from the GPU on that it was made for; the driver translates PTX for newer ones
    return there >= least and (kind == 'compute' and not letter or there[0] == least[0])


def is_cpu_only(torch, architecture):
    """True if a wheel is known to be for processors alone: 2.9.1+cpu, and PyPI's for Arm before it had CUDA there."""
    version, _, local = torch.partition('+')
    return local == CPU or not local and architecture == 'aarch64' and satisfies(version, '<', '2.11')


def why_not_cpu_only(torch, system):
    return ("torch %s is for processors alone, and the nodes of %s have GPUs (%s). Take wheels with CUDA or ROCm: "
            "PyPI's (on aarch64 from 2.11 on), or those of PyTorch's own index (cu126, cu128) for older drivers. If "
            "you want it without GPUs, say so in the easyconfig: features = ['%s']"
            % (torch, system.name, system.node['gpu_architecture'] or system.node['gpus'], CPU))


def cuda_of(packages):
    """Say which CUDA comes with packages, {name: version}: its first number, 0 without one."""
    local = re.search(r'\+cu(\d\d)', packages.get('torch', ''))
    if local:
        return int(local.group(1))
    # with CUDA 13 their names lost its number; the compiler's comes with vLLM
    for name in sorted(packages):
        if re.match(r'nvidia-cuda-(runtime|nvcc)', name):
            return int(packages[name].split('.')[0])
    return 0


def why_not_cuda(packages, system):
    """Say why packages do not run on a system, for the CUDA that comes with them; None if they do, or nobody knows."""
    cuda = cuda_of(packages)
    limit = system.node['cuda']
    architecture = system.node['gpu_architecture'] or ''
    if cuda and architecture.startswith('gfx'):
        return "these wheels are for NVIDIA's GPUs (CUDA %d), and those of %s are AMD's (%s)" % (
            cuda, system.name, architecture)
    if limit and cuda > limit:
        return ("these wheels bring CUDA %d, and the driver of %s takes %d (cuda in its system.cfg). Take an earlier "
                "version: ./eb --new-version VERSION EASYCONFIG" % (cuda, system.name, limit))
    return None


def why_not_rocm(torch, rocm):
    """Say why a wheel such as 2.2.2+rocm5.7 is not for a ROCm; None if it is for its release, or for none."""
    made_for = re.search(r'\+rocm(\d+\.\d+)', torch)
    if not made_for or not rocm or release(made_for.group(1)) == release(rocm)[:2]:
        return None
    return ("torch %s was built for ROCm %s, but ROCm %s is loaded: one process would load both. Load ROCm "
            "%s (change the dependency), or install wheels for the loaded one (./eb --new-version)"
            % (torch, made_for.group(1), rocm, made_for.group(1)))


def why_not(torch, codes, gpus):
    """Say why a PyTorch with this code is not for these GPUs; None if it is, or does not say what it has code for."""
    without = [gpu for gpu in gpus if codes and not any(runs_on(code, gpu) for code in codes)]
    if not without:
        return None
    return ("torch %s has no code for the GPU %s: it has code for %s. Install a release, or wheels for another CUDA or "
            "ROCm, that have it (./eb --new-version), or build it from source. If the nodes have another GPU, name it: "
            "--cuda-compute-capabilities, or gpu_architecture in system.cfg"
            % (torch, ' and '.join(without), ' '.join(codes)))
