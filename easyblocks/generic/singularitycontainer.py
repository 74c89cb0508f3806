##
# Copyright 2024-2026 the hpc-pytorch team
#
# This file is part of hpc-pytorch, a collection for EasyBuild (https://easybuild.io). It is free software: you can
# redistribute it and/or modify it under the terms of the GNU General Public License as published by the Free Software
# Foundation v2. It comes without any warranty; see the file LICENSE.
##
"""
EasyBuild support for a container image as a module, implemented as an easyblock: the image in the prefix, scripts for
use in the container, commands that work outside, and a module that decides when it is loaded what is mounted.

Needed because: EasyBuild has nothing that makes a module of an image, so sites write shell and Lua into easyconfigs.
Differs from upstream in: upstream has nothing like it.
Can go when: EasyBuild can do this itself.

@author: the hpc-pytorch team
"""
import os
import re
import shlex
import shutil

from easybuild.framework.easyblock import EasyBlock
from easybuild.framework.easyconfig import CUSTOM
from easybuild.tools.build_log import EasyBuildError, print_warning
from easybuild.tools.config import build_option, source_paths
from easybuild.tools.filetools import compute_checksum, convert_name, copy, copy_file, mkdir, remove_dir
from easybuild.tools.filetools import remove_file, symlink, write_file
from easybuild.tools.run import run_shell_cmd

from hpc_pytorch import UsersProblem
from hpc_pytorch.machine.collection_files import named_file
from hpc_pytorch.machine.module_files import explain, override, set_by_default, told_by
from hpc_pytorch.machine.systems import current
from hpc_pytorch.packages import container_modules, images
from hpc_pytorch.packages.container_scripts import SCRIPTS_INSIDE, USER_SOFTWARE, scripts_for, usage

# What the scripts themselves call outside; a wrapper of that name would call itself for ever.
NO_WRAPPERS = ('bash', 'dirname', 'env', 'readlink', 'sh')
# What the settings of a system (`when` in its system.cfg) may count on in a container for accelerators.
FEATURES = ('container', 'gpu', 'nccl')
# Environment variable with the directories to search for images, instead of the system's own.
STORE_VARIABLE = 'HPC_IMAGE_SEARCH_PATH'
# What an image that brings its own bill of materials calls it.
BILL = '/.sbom.json'


class SingularityContainer(EasyBlock):
    """Installs the first of its sources, an image, as a module; the others are its Docker definition files."""

    @staticmethod
    def extra_options(extra_vars=None):
        return EasyBlock.extra_options(dict({
            'bind_paths': [[], "What the container must see of the host, besides the system's own bind_paths; with - "
                               "before it what it must not see of those", CUSTOM],
            'container_environment': [{}, "Environment variables to set in the container", CUSTOM],
            'copy_image': [True, "Copy the image into the prefix, so that it stays when the site removes its own",
                           CUSTOM],
            'import_name': [None, "Python package that the sanity check imports in the container", CUSTOM],
            'packages': [{}, "Python packages that the image must have, with their versions", CUSTOM],
            'run_image': [False, "Use `singularity run`, for an image that initialises itself only there", CUSTOM],
            'venv': [False, "Make a virtual environment on top of the container's, outside the image", CUSTOM],
            'venv_lock_files': [[], "Lock files of packages to install into it", CUSTOM],
            'verify_signature': [False, "Refuse an image that `singularity verify` does not accept", CUSTOM],
            'wrappers': [[], "Commands of the container to have outside too", CUSTOM],
        }, **extra_vars or {}))

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        try:
            self.system = current(self.cfg.path or '')
        except UsersProblem as problem:
            raise EasyBuildError("%s", problem)
        self.image_source = next((source if isinstance(source, str) else source['filename']
                                  for source in self.cfg['sources'] or []), '')
        self.variable = convert_name(self.name, upper=True)
        self.verb = 'run' if self.cfg['run_image'] else 'exec'
        # like a conda environment for it would be called
        self.venv = os.path.join('/', USER_SOFTWARE, 'venv', self.name.lower())
        self.scripts = scripts_for(self.cfg['import_name'])
        self.venv_locks = []
        self.module_load_environment.replace({'PATH': ['bin']})
        self.cfg['usage'] = self.cfg['usage'] or usage(
            self.variable, self.verb, self.system.launcher['command'], self.scripts, self.cfg['wrappers'],
            self.cfg['venv'] and self.venv) + explain(self.settings, self.system.advice)
        # nothing is compiled, and under -x upstream stumbles over compiler wrappers and a checksums.json that it misses
        self.toolchain.options['rpath'] = False
        self.json_checksums = {} if self.dry_run else None

    def check_readiness_step(self):
        """Besides what EasyBuild looks at, stop at data that cannot be meant so."""
        super().check_readiness_step()
        if not self.image_source:
            raise EasyBuildError("`sources` of %s names no image", self.cfg.path)
        self.venv_locks = [named_file(self.cfg.path, name) or self.obtain_file(name, no_download=True)
                           for name in self.cfg['venv_lock_files']]
        for path in self.bind_paths:
            # a comma separates them in $SINGULARITY_BINDPATH, the others mean something in a module file
            if not path.startswith('/') or re.search(r'[\s,"\'$\\\[\]{};]', path):
                raise EasyBuildError("expected absolute paths in bind_paths that can be bound, found %r", path)
        for path in self.cfg['bind_paths']:
            if path.startswith('-') and path[1:] not in self.system.container['bind_paths']:
                raise EasyBuildError("%r in bind_paths takes away a path that %s does not bind; it binds %s", path,
                                     self.system.name, ' '.join(self.system.container['bind_paths']) or "nothing")
        for name in self.cfg['wrappers']:
            taken = self.scripts.get(name, ('inside', ''))[0] != 'inside'
            if taken or name in NO_WRAPPERS or not re.match(r'[\w.+-]+$', name):
                raise EasyBuildError("%r in `wrappers` cannot be the name of a command outside the container", name)

    # -- where the image is

    @property
    def image_name(self):
        """What the file of the image is called."""
        if self.image_source.startswith('docker://'):
            return self.checked(images.file_of, self.image_source)
        return os.path.basename(self.image_source)

    @property
    def bind_paths(self):
        """What the container is to see of the host, if it is there."""
        own = self.cfg['bind_paths']
        return [path for path in self.system.container['bind_paths'] if '-' + path not in own] + [
            path for path in own if not path.startswith('-')]

    @property
    def image_stores(self):
        """The directories in which the site keeps images."""
        given = os.environ.get(STORE_VARIABLE)
        return [path for path in given.split(':') if path] if given else self.system.container['image_search_path']

    @staticmethod
    def checked(function, *arguments):
        """Call a function, and stop at what a user or the site can mend."""
        try:
            return function(*arguments)
        except UsersProblem as problem:
            raise EasyBuildError("%s", problem)

    def obtain_file(self, filename, **kwargs):
        """Images may also be in a store of the site, which comes after the source path, or in a registry."""
        if filename != self.image_source or self.dry_run or kwargs.get('force_download'):
            return super().obtain_file(filename, **kwargs)
        local = super().obtain_file(self.image_name, **dict(kwargs, no_download=True, warning_only=True))
        found = local or images.find_image(self.image_stores, self.image_name)
        if found:
            return found
        if filename.startswith('docker://'):
            return self.pull_image()
        if kwargs.get('urls') or self.cfg['source_urls']:
            return super().obtain_file(filename, **kwargs)
        raise EasyBuildError(self.nowhere())

    def nowhere(self):
        """The message for an image that was not found."""
        return "%s Set $%s to where it is, or copy it to the source path." % (
            images.not_found(self.image_name, source_paths(), self.image_stores), STORE_VARIABLE)

    def dry_run_image(self):
        """A dry run succeeds without the image; the installation would not."""
        places = source_paths() + [os.path.join(path, self.name[0].lower()) for path in source_paths()]
        if not (self.image_source.startswith('docker://') or self.cfg['source_urls']
                or images.find_image(places + self.image_stores, self.image_name)):
            self.dry_run_msg("  * Installing would stop here: %s", self.nowhere())

    def pull_image(self):
        """Fetch an image from a registry, to where EasyBuild keeps sources."""
        if not self.runtime:
            raise EasyBuildError("fetching %s needs singularity or apptainer; neither is here", self.image_source)
        target = os.path.join(source_paths()[0], self.name[0].lower(), self.name, self.image_name)
        self.checked(images.pull, self.runtime, self.image_source, target)
        return target

    @property
    def candidates(self):
        """Where the module looks for the image when it is loaded, best first."""
        if self.cfg['copy_image']:
            own = os.path.join(self.installdir, self.image_name)
        elif self.src:
            own = self.src[0]['path']
        else:
            # --module-only fetches nothing
            own = super().obtain_file(self.image_name, no_download=True, warning_only=True)
        found = [own] + [images.find_image([store], self.image_name) or os.path.join(store, self.image_name)
                         for store in self.image_stores]
        return [path for index, path in enumerate(found) if path and path not in found[:index]]

    # -- steps

    def checksum_step(self):
        """Besides the checksum, look whether this is an image, and whether it is whole."""
        super().checksum_step()
        if self.dry_run or not self.src:
            return
        image = self.src[0]['path']
        self.checked(images.check_image, image)
        if self.cfg['verify_signature']:
            self.verify_signature(image)

    def verify_signature(self, image):
        """Stop unless the signature of the image is good."""
        if not self.runtime:
            raise EasyBuildError("verify_signature needs singularity or apptainer; neither is here")
        result = run_shell_cmd([self.runtime, 'verify', image], use_bash=False, fail_on_error=False, hidden=True)
        if result.exit_code:
            raise EasyBuildError("the signature of %s was not accepted: %s", image, result.output.strip())

    @property
    def runtime(self):
        """The program that runs containers here, or None."""
        return shutil.which('singularity') or shutil.which('apptainer')

    def extract_step(self):
        """An image is used as it is; before the prefix is touched, look whether all can be done."""
        if self.dry_run:
            return self.dry_run_image()
        if self.cfg['venv'] and not self.runtime:
            raise EasyBuildError("making the virtual environment needs singularity or apptainer; neither is here. "
                                 "Install on a node that has one")
        if self.cfg['copy_image']:
            self.checked(images.check_room, self.src[0]['path'], self.installdir)

    def configure_step(self):
        """Nothing to configure."""

    def build_step(self):
        """Nothing to build."""

    def make_installdir(self, *args, **kwargs):
        """What is half-made cannot be loaded: the module file of an earlier installation goes first."""
        if not (self.dry_run or build_option('module_only')):
            remove_file(self.module_generator.get_module_filepath())
        super().make_installdir(*args, **kwargs)

    def install_step(self):
        """The image, the scripts, the wrappers, the Docker definition files and the virtual environment."""
        if self.cfg['copy_image'] and not self.dry_run:
            self.install_image()
        self.install_scripts()
        for source in self.src[1:]:
            copy_file(source['path'], os.path.join(self.installdir, 'share', 'docker-defs', source['name']))
        # for the wrappers: where they find the image, how it is started, and what to load when it is not there
        write_file(os.path.join(self.installdir, 'share', 'container'), 'SIF%s %s %s\n' % (
            self.variable, self.verb, self.short_mod_name))
        copy(self.system.for_scripts, os.path.join(self.installdir, 'share'))
        if self.cfg['venv']:
            self.install_venv()
        if self.runtime and not self.dry_run:
            self.install_bill()

    def install_image(self):
        """Copy the image into the prefix and look whether it arrived."""
        source, target = self.src[0], os.path.join(self.installdir, self.image_name)
        try:
            self.checked(images.place_image, source['path'], target)
            if compute_checksum(target, 'sha256') != source.get('sha256'):
                raise EasyBuildError("the copy %s differs from %s: is a disk broken?", target, source['path'])
        except EasyBuildError:
            # half an installation is none
            remove_dir(self.installdir)
            raise

    def install_scripts(self):
        """The scripts for use in and around the container, and links for what is wanted on the path outside."""
        scripts, commands = [os.path.join(self.installdir, name) for name in ('runscripts', 'bin')]
        mkdir(commands, parents=True)
        for name, (where, _) in sorted(self.scripts.items()):
            copy_file(named_file(self.cfg.path, name), os.path.join(scripts, name))
            if where != 'inside':
                symlink(os.path.join('..', 'runscripts', name if where == 'outside' else 'run-in-container'),
                        os.path.join(commands, name), use_abspath_source=False)
        for name in self.cfg['wrappers']:
            symlink(os.path.join('..', 'runscripts', 'run-in-container'), os.path.join(commands, name),
                    use_abspath_source=False)

    def run_inside(self, *command, **options):
        """Run a command in the image, with the directories that belong to this installation."""
        places = [('runscripts', SCRIPTS_INSIDE), (USER_SOFTWARE, '/' + USER_SOFTWARE)]
        mounts = [os.path.join(self.installdir, outside) + ':' + inside for outside, inside in places
                  if os.path.isdir(os.path.join(self.installdir, outside))]
        mounts += [path + ':/locks/' + os.path.basename(path) for path in self.venv_locks]
        # a dry run goes on without
        program = [self.runtime or 'singularity', self.verb, '--bind', ','.join(mounts), self.candidates[0]]
        return run_shell_cmd(program + list(command), use_bash=False, **options)

    def install_venv(self):
        """A virtual environment over the container's Python, in a directory that is bound to the same place inside."""
        mkdir(os.path.join(self.installdir, USER_SOFTWARE, 'venv'), parents=True)
        with_environment = os.path.join(SCRIPTS_INSIDE, 'with-environment')
        self.run_inside(with_environment, 'python', os.path.join(SCRIPTS_INSIDE, 'make-container-venv'), self.venv)
        for path in self.venv_locks:
            self.run_inside(with_environment, os.path.join(self.venv, 'bin', 'python'), '-m', 'pip', 'install',
                            '--quiet', '--no-deps', '--require-hashes', '-r', '/locks/' + os.path.basename(path))

    def install_bill(self):
        """Keep the image's own bill of materials with the provenance, if it brings one."""
        bill = self.run_inside('cat', BILL, fail_on_error=False, hidden=True, split_stderr=True)
        if not bill.exit_code:
            write_file(os.path.join(self.installdir, 'easybuild', 'provenance', 'image-sbom.json'), bill.output)

    # -- the module

    @property
    def settings(self):
        """The settings of the system that apply; what the easyconfig sets itself is better."""
        return [setting for setting in self.system.settings_for(FEATURES)
                if setting.name not in self.cfg['modextravars']]

    def make_module_extra(self, *args, **kwargs):
        """What the module sets, and what it decides when it is loaded."""
        module = self.module_generator
        text = super().make_module_extra(*args, **kwargs)
        text += container_modules.company(module, self.system.container['conflicts'])
        text += module.set_environment('CONTAINERROOT', '', relpath=True)
        for name in ('RUNSCRIPTS', 'RUNSCRIPTS' + self.variable):
            text += module.set_environment(name, 'runscripts', relpath=True)
        # the user's comes back when the module is unloaded
        text += override(module, self.name, 'PYTHONPATH', '')
        text += container_modules.inside(module, self.cfg['venv'] and self.venv, self.cfg['container_environment'])
        text += ''.join(set_by_default(module, setting) for setting in self.settings)
        told = [(name, value) for name, value in told_by(self.system) if name not in self.cfg['modextravars']]
        text += ''.join(module.set_environment(name, value) for name, value in told)
        gone = "%s cannot be loaded: its image %s is gone from %s. Install it again: eb %s --force" % (
            self.short_mod_name, self.image_name, ' and '.join(map(os.path.dirname, self.candidates)),
            shlex.quote(os.path.basename(self.cfg.path)))
        return '\n'.join([text, container_modules.image(module, ('SIF', 'SIF' + self.variable), self.candidates, gone),
                          container_modules.binds(module, self.installdir, self.bind_paths)])

    def sanity_check_step(self, *args, **kwargs):
        """The files, and in the container, where something can run it, Python, packages and commands."""
        files = ['runscripts/' + name for name in self.scripts] + ['bin/' + name for name in self.cfg['wrappers']]
        commands = ['run-in-container true'] + [
            "run-in-container bash -c 'type -P %s || { echo the image has no %s; exit 1; }'" % (name, name)
            for name in self.cfg['wrappers']]
        if self.cfg['import_name']:
            commands.append("run-in-container python -c 'import %s'" % self.cfg['import_name'])
        if self.cfg['packages']:
            commands.append("run-in-container python %s/check-packages %s" % (SCRIPTS_INSIDE, ' '.join(
                '%s==%s' % package for package in sorted(self.cfg['packages'].items()))))
        if not self.runtime:
            commands = []
            print_warning("neither singularity nor apptainer is here: nothing was checked in the container",
                          log=self.log)
        super().sanity_check_step(*args, custom_paths={'files': files, 'dirs': ['bin']}, custom_commands=commands,
                                  **kwargs)
