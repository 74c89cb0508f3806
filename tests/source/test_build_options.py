"""What is known of PyTorch's build by version."""
from hpc_pytorch.source import build_options


def test_unknown_architectures():
    """In the words of nvcc 13.0, which says nothing of 9.0a and PTX; an nvcc that lists nothing is believed."""
    listing = 'compute_75\ncompute_80\ncompute_90\ncompute_100\n'
    assert build_options.unknown_architectures(['8.0', '9.0a', '10.0+PTX', '7.0', '0.9'], listing) == ['7.0', '0.9']
    assert build_options.unknown_architectures(['3.5'], '') == []
