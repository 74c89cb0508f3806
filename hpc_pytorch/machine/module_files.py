"""
Pieces of modules that EasyBuild's module generators do not have, for both of their languages.

Standard library only, Python 3.6.
"""

# Whether a variable is not set by the user. What this module has set itself counts as not set, so that it is unset
# again when the module is unloaded.
NOT_THE_USERS = {
    'Lua': '(os.getenv("%(name)s") or "%(value)s") == "%(value)s"',
    'Tcl': 'expr { ![info exists ::env(%(name)s)] || $::env(%(name)s) eq "%(value)s" }',
}


def set_by_default(generator, setting):
    """Set an environment variable unless the user has; `setting` has a name, a value and the reason for it."""
    condition = NOT_THE_USERS[generator.SYNTAX] % {'name': setting.name, 'value': setting.value}
    return generator.comment(setting.reason) + generator.conditional_statement(
        [condition], generator.set_environment(setting.name, setting.value).rstrip())
