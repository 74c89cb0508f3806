"""What is known of PyTorch's build by version."""
from hpc_pytorch.source import build_options


def test_unknown_architectures():
    """In the words of nvcc 13.0, which says nothing of 9.0a and PTX; an nvcc that lists nothing is believed."""
    listing = 'compute_75\ncompute_80\ncompute_90\ncompute_100\n'
    assert build_options.unknown_architectures(['8.0', '9.0a', '10.0+PTX', '7.0', '0.9'], listing) == ['7.0', '0.9']
    assert build_options.unknown_architectures(['3.5'], '') == []


def test_cloned(tmp_path):
    """What a tree has a pin for and no files, if the options need it."""
    assert build_options.cloned(str(tmp_path), {'USE_CUDA': '1'}) == []
    (tmp_path / '.ci/docker/ci_commit_pins').mkdir(parents=True)
    (tmp_path / '.ci/docker/ci_commit_pins/nccl-cu12.txt').write_text('v2.27.5-1\n')
    assert build_options.cloned(str(tmp_path), {'USE_CUDA': '1'}) == ['third_party/nccl']
    for asked in ({'USE_CUDA': '0'}, {'USE_CUDA': '1', 'USE_SYSTEM_NCCL': '1'}):
        assert build_options.cloned(str(tmp_path), asked) == []
    (tmp_path / 'third_party/nccl').mkdir(parents=True)
    assert build_options.cloned(str(tmp_path), {'USE_CUDA': '1'}) == []
