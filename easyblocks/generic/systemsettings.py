##
# Copyright 2026 the hpc-pytorch team
#
# This file is part of hpc-pytorch, a collection for EasyBuild (https://easybuild.io). It is free software: you can
# redistribute it and/or modify it under the terms of the GNU General Public License as published by the Free Software
# Foundation v2. It comes without any warranty; see the file LICENSE.
##
"""
EasyBuild support for modules of settings alone, implemented as an easyblock

They set what a system's data (`systems/<name>/system.cfg`) say for those who ask for it, such as the way to the
internet from compute nodes. Nothing is installed besides the module file.

Needed because: EasyBuild's own easyblocks take what a module sets from the easyconfig, and here it is known already.
Differs from upstream's Bundle in: settings instead of components.
Can go when: the collection has no such data any more.

@author: the hpc-pytorch team
"""
import re

from easybuild.easyblocks.generic.bundle import Bundle
from easybuild.framework.easyconfig import MANDATORY
from easybuild.tools.build_log import EasyBuildError

from hpc_pytorch import UsersProblem
from hpc_pytorch.machine.systems import current

# What a module file asks and says about environment variables of the user's, in each syntax.
MODULE_SYNTAX = {
    'Lua': {'given': 'os.getenv("%s")', 'loading': 'mode() == "load"', 'fail': 'LmodError("%s")'},
    'Tcl': {'given': 'info exists ::env(%s)', 'loading': 'module-info mode load', 'fail': 'error "%s"'},
}


class SystemSettings(Bundle):
    """Support for modules that set what a system's data say for some feature."""

    @staticmethod
    def extra_options(extra_vars=None):
        return Bundle.extra_options(dict({
            'features': [None, "Which settings of the system: those with all of these in their `when`", MANDATORY],
        }, **extra_vars or {}))

    def settings(self):
        """The system's settings for these features."""
        try:
            system = current(self.cfg.filename())
        except UsersProblem as problem:
            raise EasyBuildError(str(problem))
        features = set(self.cfg['features'])
        found = [setting for setting in system.settings_for(features)
                 if features <= set(name for name, _, _ in setting.when)]
        if not found:
            raise EasyBuildError("%s/system.cfg has no setting for: %s", system.directory, ' '.join(sorted(features)))
        return found

    def users_variables(self):
        """The environment variables that the values are made of, for the user to set."""
        return sorted(set(name for setting in self.settings() for name in re.findall(r'\$(\w+)', setting.value)))

    def make_module_extra(self, *args, **kwargs):
        """One line for each setting, and why; loading stops at a variable that the user has not set."""
        module, text = self.module_generator, ''
        for setting in self.settings():
            text += module.comment(setting.reason)
            text += module.set_environment(setting.name, setting.value)
        syntax = MODULE_SYNTAX[module.SYNTAX]
        for name in self.users_variables():
            missing = module.conditional_statement(syntax['loading'], syntax['fail'] % (
                "set %s to a directory first, then load %s" % (name, self.short_mod_name)))
            text = module.conditional_statement(syntax['given'] % name, text.rstrip(), else_body=missing.rstrip())
        return super().make_module_extra(*args, **kwargs) + text

    def sanity_check_step(self, *args, **kwargs):
        """The module can be loaded, by somebody who set what it asks for."""
        for name in self.users_variables():
            # the environment in which EasyBuild loads the module
            self.initial_environ.setdefault(name, self.installdir)
        super().sanity_check_step(*args, **kwargs)
