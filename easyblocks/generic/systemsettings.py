# Copyright 2026 the hpc-pytorch team, GNU General Public License v2, without any warranty: see the file LICENSE
"""
EasyBuild support for modules of settings alone, implemented as an easyblock

They set what a system's data (`systems/<name>/system.cfg`) say for those who ask for it, such as the way to the
internet from compute nodes. Nothing is installed besides the module file.

Needed because: EasyBuild's own easyblocks take what a module sets from the easyconfig, and here it is known already.
Differs from upstream's Bundle in: settings instead of components.
Remove when: the collection has no such data any more.
"""
import re

from easybuild.easyblocks.generic.bundle import Bundle
from easybuild.framework.easyconfig import MANDATORY
from easybuild.tools.build_log import EasyBuildError

from hpc_pytorch.machine.module_files import snippet
from hpc_pytorch.machine.systems import current
from hpc_pytorch.packages.easybuild_errors import as_easybuild_error


class SystemSettings(Bundle):
    """Support for modules that set what a system's data say for some feature."""

    @staticmethod
    def extra_options(extra_vars=None):
        features = [None, "Words; the module makes the settings that have all of them in `when`", MANDATORY]
        return Bundle.extra_options(dict({'features': features}, **extra_vars or {}))

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        features = set(self.cfg['features'])
        with as_easybuild_error():
            system = current(self.cfg.filename())
        self.settings = [setting for setting in system.settings_for(features)
                         if features <= {name for name, _, _ in setting.when}]
        # the environment variables that the values are made of, for the user to set
        self.users_variables = {name for one in self.settings for name in re.findall(r'\$(\w+)', one.value)}
        if not self.settings:
            raise EasyBuildError("%s/system.cfg has no setting for: %s", system.directory, ' '.join(sorted(features)))

    def make_module_extra(self, *args, **kwargs):
        """Add a line for each setting, with its reason; loading stops at a variable that the user has not set."""
        module = self.module_generator
        text = ''
        for setting in self.settings:
            text += module.comment(setting.reason)
            text += module.set_environment(setting.name, setting.value)
        for name in sorted(self.users_variables):
            message = "set %s to a directory first, then load %s" % (name, self.short_mod_name)
            fail = snippet(module, 'fail', message)
            missing = module.conditional_statement(snippet(module, 'loading'), fail).rstrip()
            text = module.conditional_statement(snippet(module, 'set', name), text.rstrip(), else_body=missing)
        return super().make_module_extra(*args, **kwargs) + text

    def sanity_check_step(self, *args, **kwargs):
        """Load the module as somebody who set what it asks for."""
        for name in self.users_variables:
            # the environment in which EasyBuild loads the module
            self.initial_environ.setdefault(name, self.installdir)
        super().sanity_check_step(*args, **kwargs)
