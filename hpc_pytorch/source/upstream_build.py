"""A build of PyTorch by upstream's easyblock: CMake's decisions are compared before anything is compiled."""
import os

from easybuild.tools.build_log import print_msg
from easybuild.tools.run import run_shell_cmd

from hpc_pytorch.packages.easybuild_errors import as_easybuild_error
from hpc_pytorch.source import build_options, contract


def compare_with_cmake(easyblock):
    """Stop a build when CMake leaves out what was asked for; a site's post_configure_hook calls it."""
    options = easyblock.cfg['prebuildopts']
    asked = build_options.as_dict(os.path.expandvars(options).split())
    route = build_options.route(easyblock.version)
    if not route or not route.configure:
        print_msg("CMake's decisions are not compared: setup.py of PyTorch %s cannot run CMake alone",
                  easyblock.version)
    elif not easyblock.dry_run:
        command = ' '.join([options, easyblock.python_cmd] + list(route.configure))
        output = run_shell_cmd(command, work_dir=easyblock.start_dir).output
        with as_easybuild_error():
            contract.check(easyblock.start_dir, output, asked, asked)
        print_msg("CMake enabled all requested options", log=easyblock.log)
