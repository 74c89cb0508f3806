"""
What differs on a compute node from the login node, for processes that root starts: $HOME is another one, empty and with
room for little, and there is no network but the nodes' own.
"""
import os
import shlex
import sys

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# of bytes and of files, as quotas are
ROOM = 'size=1m,nr_inodes=200,mode=755'


def other_home(directory, *kept):
    """
    The shell command that replaces $HOME in a mount namespace, by way of an empty directory. What the tests themselves
    run with stays where it is below $HOME, and so do the `kept` directories.
    """
    home = os.path.realpath(os.path.expanduser('~'))
    commands = ['mount -t tmpfs -o %s home %s' % (ROOM, shlex.quote(str(directory)))]
    for path in {os.path.realpath(needed) for needed in (TOP, sys.base_prefix, directory, *kept)}:
        if path.startswith(home + os.sep):
            place = shlex.quote(str(directory) + path[len(home):])
            commands.append('mkdir -p %s && mount --bind %s %s' % (place, shlex.quote(path), place))
    return ' && '.join(commands + ['mount --rbind %s %s' % (shlex.quote(str(directory)), shlex.quote(home))])
