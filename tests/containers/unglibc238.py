#!/usr/bin/env python3
"""
unglibc238.py FILE ...: let x86-64 programs that want glibc 2.38 for __isoc23_strto* run on glibc 2.36.

In place: those undefined symbols become plain strto*, without a version, and the entry that asks for GLIBC_2.38 asks
for GLIBC_2.34 a second time. A program that needs anything else of 2.38, or of a newer glibc, is refused.
"""
import re
import struct
import sys

OLD, NEW = b'GLIBC_2.34', b'GLIBC_2.38'
SUBSTITUTES = {b'__isoc23_strto%s' % kind: len('__isoc23_') for kind in (b'l', b'ul', b'll', b'ull')}
SECTION = struct.Struct('<IIQQQQIIQQ')
DYNSYM, VERNEED, VERSYM = 11, 0x6ffffffe, 0x6fffffff


def patch(path):
    """Patch one file."""
    with open(path, 'rb') as handle:
        data = bytearray(handle.read())

    def unpack(form, offset):
        return struct.unpack_from('<' + form, data, offset)

    assert data[:6] == b'\x7fELF\x02\x01', "%s is no 64-bit ELF file" % path
    table, = unpack('Q', 0x28)
    size, count = unpack('HH', 0x3a)
    sections = [SECTION.unpack_from(data, table + index * size) for index in range(count)]
    by_type = {section[1]: section for section in sections}
    symbols, strings = by_type[DYNSYM], sections[by_type[DYNSYM][6]]

    def name(offset):
        start = strings[4] + offset
        return bytes(data[start:data.index(0, start)])

    # version -> where the entry that asks for it is, with its hash, index and name
    versions = {}
    offset = by_type[VERNEED][4]
    for _ in range(by_type[VERNEED][7]):
        _, entries, _, entry, following = unpack('HHIII', offset)
        entry += offset
        for _ in range(entries):
            digest, _, index, string, step = unpack('IHHII', entry)
            versions[name(string)] = entry, digest, index, string
            entry += step
        offset += following
    newer = [version for version in versions if re.match(rb'GLIBC_2\.(\d+)$', version) and
             int(version.split(b'.')[1]) > 38]
    assert not newer, "%s needs %s" % (path, newer)
    if NEW not in versions:
        return
    entry, _, wanted, _ = versions[NEW]
    _, digest, _, string = versions[OLD]
    struct.pack_into('<I', data, entry, digest)
    struct.pack_into('<I', data, entry + 8, string)
    for index in range(symbols[5] // 24):
        version_at = by_type[VERSYM][4] + 2 * index
        if unpack('H', version_at)[0] & 0x7fff != wanted:
            continue
        symbol_at = symbols[4] + 24 * index
        start, = unpack('I', symbol_at)
        assert name(start) in SUBSTITUTES, "%s: %s@GLIBC_2.38 has no substitute" % (path, name(start).decode())
        struct.pack_into('<I', data, symbol_at, start + SUBSTITUTES[name(start)])
        struct.pack_into('<H', data, version_at, 1)
    with open(path, 'wb') as handle:
        handle.write(data)


if __name__ == '__main__':
    for argument in sys.argv[1:]:
        patch(argument)
