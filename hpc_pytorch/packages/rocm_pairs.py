"""
Which of PyTorch's official ROCm wheels exist, and whether one fits a system: the table, and words for what does not.

A wheel brings ROCm's libraries along; what is loaded besides it (the RCCL plugin, extensions that users compile) has to
be of the same release, or two of them meet in one process.
"""
import re
from collections import namedtuple

# One line for each pair: to 2.8 as PyTorch's installation pages name them, from 2.9 on as public lock files had them on
# 2026-11-21, and PyTorch's RELEASE.md for 2.12. `gpus` as far as PyTorch's own builds are known to compile for them.
Row = namedtuple('Row', 'pytorch rocm pythons gpus')
BEFORE_GFX11 = 'gfx900 gfx906 gfx908 gfx90a gfx1030'
BEFORE_GFX942 = BEFORE_GFX11 + ' gfx1100'
FROM_6_0 = BEFORE_GFX942 + ' gfx942'
FROM_3_10 = '3.10 3.11 3.12 3.13 3.14'
TABLE = tuple(Row(*line) for line in (
    ('2.0', '5.4', '3.8 3.9 3.10 3.11', BEFORE_GFX11),
    ('2.1', '5.6', '3.8 3.9 3.10 3.11', BEFORE_GFX942),
    ('2.2', '5.7', '3.8 3.9 3.10 3.11 3.12', BEFORE_GFX942),
    ('2.3', '6.0', '3.8 3.9 3.10 3.11 3.12', FROM_6_0),
    ('2.4', '6.1', '3.8 3.9 3.10 3.11 3.12', FROM_6_0),
    ('2.5', '6.1', '3.9 3.10 3.11 3.12', FROM_6_0),
    ('2.5', '6.2', '3.9 3.10 3.11 3.12', FROM_6_0),
    ('2.6', '6.1', '3.9 3.10 3.11 3.12 3.13', FROM_6_0),
    ('2.6', '6.2', '3.9 3.10 3.11 3.12 3.13', FROM_6_0),
    ('2.7', '6.3', '3.9 3.10 3.11 3.12 3.13', FROM_6_0),
    ('2.8', '6.4', '3.9 3.10 3.11 3.12 3.13', FROM_6_0),
    ('2.9', '6.3', FROM_3_10, FROM_6_0),
    ('2.9', '6.4', FROM_3_10, FROM_6_0),
    ('2.10', '7.0', FROM_3_10, FROM_6_0),
    ('2.10', '7.1', FROM_3_10, FROM_6_0),
    ('2.11', '7.2', FROM_3_10, FROM_6_0),
    ('2.12', '7.2', FROM_3_10, FROM_6_0),
    ('2.13', '7.1', FROM_3_10, FROM_6_0),
    ('2.13', '7.2', FROM_3_10, FROM_6_0),
    ('2.14', '7.2', FROM_3_10, FROM_6_0),
))


def release(version):
    """The part of a version that has to agree: 5.7 of 5.7.1."""
    return '.'.join(version.split('.')[:2])


def rocm_of(version):
    """The ROCm that a wheel of this version was made for; None if for none."""
    match = re.search(r'\+rocm([\d.]+)$', version)
    return match.group(1) if match else None


def describe(rows):
    return '; '.join("PyTorch %s with ROCm %s, Python %s" % (row.pytorch, row.rocm, row.pythons.replace(' ', ', '))
                     for row in rows) or 'none'


def why_none(version, rocm):
    """Why there are no wheels of this PyTorch for this ROCm; None if there are, or where the table does not know."""
    rows = [row for row in TABLE if row.pytorch == release(version)]
    if not rows or any(row.rocm == release(rocm) for row in rows):
        return None
    return "PyTorch %s has no wheels for ROCm %s; it has them for: %s" % (
        version, rocm, ', '.join(row.rocm for row in rows))


def why_not(torch, rocm, python, gpu):
    """
    Why the wheel of torch (2.2.2+rocm5.7) does not go with this ROCm, Python and GPU; None if it does.

    What is not known (None) is not judged, nor are wheels that were made for no ROCm or are newer than the table.
    """
    wanted = rocm_of(torch)
    if wanted is None:
        return None
    rows = [row for row in TABLE if row.pytorch == release(torch) and row.rocm == release(wanted)]
    if rocm and release(rocm) != release(wanted):
        fitting = [row for row in TABLE if row.rocm == release(rocm) and python in row.pythons.split()]
        return ("torch %s was made for ROCm %s, and the loaded one is %s. Load ROCm %s (change the dependency), or "
                "install what fits this ROCm and Python %s: %s"
                % (torch, wanted, rocm, release(wanted), python, describe(fitting)))
    if rows and not any(python in row.pythons.split() for row in rows):
        fitting = [row for row in TABLE if row.rocm == release(wanted)]
        return ("torch %s has no wheel for Python %s. Wheels exist for: %s"
                % (torch, python, describe(fitting)))
    if rows and gpu and gpu.startswith('gfx') and not any(gpu in row.gpus.split() for row in rows):
        fitting = [row for row in TABLE if gpu in row.gpus.split() and python in row.pythons.split()]
        return ("torch %s was not compiled for %s, the GPU of this system, but for %s. Wheels for it: %s"
                % (torch, gpu, ', '.join(rows[0].gpus.split()), describe(fitting)))
    return None
