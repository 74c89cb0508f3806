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


# Modules tools forget what a variable was: the stack of Lmod 8.6 keeps the value of an earlier load as the one to go
# back to, Environment Modules 5.2 only the first part of one with colons.
PUT_ASIDE = {
    'Lua': '''
do
    local function base64(text)
        local letters, out = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", {}
        for i = 1, #text, 3 do
            local a, b, c = string.byte(text, i, i + 2)
            local bits = a * 65536 + (b or 0) * 256 + (c or 0)
            for place = 3, 0, -1 do
                local digit = math.floor(bits / 64 ^ place) %% 64 + 1
                local none = place == 0 and not c or place == 1 and not b
                out[#out + 1] = none and "=" or string.sub(letters, digit, digit)
            end
        end
        return table.concat(out)
    end
    -- Lmod's stack may be of an earlier load: the value of today goes on top of it
    local stack, value = os.getenv("__LMOD_STACK_%(name)s"), os.getenv("%(name)s")
    if mode() == "load" and stack and string.match(stack, "[^:]*") ~= (value and base64(value) or "false") then
        pushenv("%(name)s", value or false)
    end
    pushenv("%(name)s", "%(value)s")
end
''',
    'Tcl': '''
if { ![info exists ::ModuleTool] || $::ModuleTool ne {Modules} } {
    pushenv %(name)s {%(value)s}
} elseif { [module-info mode unload] && [info exists ::env(__HPC_BEFORE_%(owner)s_%(name)s)] } {
    # with a value, and in this mode, it sets the variable
    unsetenv %(name)s $::env(__HPC_BEFORE_%(owner)s_%(name)s)
    setenv __HPC_BEFORE_%(owner)s_%(name)s {}
} else {
    if { [module-info mode load] && [info exists ::env(%(name)s)] } {
        setenv __HPC_BEFORE_%(owner)s_%(name)s $::env(%(name)s)
    }
    setenv %(name)s {%(value)s}
}
''',
}


def put_aside(generator, owner, name, value):
    """Set an environment variable to ours while the module `owner` is loaded; the user's comes back exactly."""
    return PUT_ASIDE[generator.SYNTAX] % {'name': name, 'value': value, 'owner': ''.join(filter(str.isalnum, owner))}
