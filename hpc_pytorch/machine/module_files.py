"""Pieces of modules that EasyBuild's module generators do not have, for both of their languages."""
import glob
import os
import re

from hpc_pytorch import parse
from hpc_pytorch.machine.systems import HERE

SYNTAX = parse(os.path.join(HERE, 'module_syntax.cfg'))


def set_by_default(generator, setting):
    """Set an environment variable unless the user has; `setting` has a name, a value and the reason for it."""
    condition = SYNTAX[generator.SYNTAX]['not by the user'] % {'name': setting.name, 'value': setting.value}
    statement = generator.set_environment(setting.name, setting.value).rstrip()
    return generator.comment(setting.reason) + generator.conditional_statement([condition], statement)


def ask(generator, name, argument=''):
    """Return what module_syntax.cfg has of this name for the language of the module file."""
    text = SYNTAX[generator.SYNTAX][name]
    return text % ((argument,) * text.count('%s'))


def explain(settings, advice):
    """List for `module help` what the module sets for this system, and what the site advises to try."""
    text = ''
    for title, variables in (("Set by this module, unless you have:", settings),
                             ("Worth trying on this system:", advice)):
        if variables:
            text += '\n%s\n' % title
            text += '\n'.join("  %s=%s: %s" % (one.name, one.value, one.reason) for one in variables) + '\n'
    return text.rstrip('\n')


def told_by(system):
    """Return what pytorch-srun and cpu-mask must know of a system: pairs of an environment variable and its value."""
    node = system.node
    options = ['%s=%s:%s' % (one.name, one.value, one.job_option) for one in system.settings if one.job_option]
    gpu_cores = [','.join(map(str, cores)) for cores in node['gpu_cores']]
    told = {
        'HPC_MASTER_PORT': system.network['master_port'],
        'HPC_NCCL_NET': system.network['nccl_net'],
        'HPC_JOB_OPTIONS': ' '.join(options),
        'HPC_NODE_CPUS': (node['cores'] or 0) * (node['threads_per_core'] or 1),
        'GPU_CORES': ' '.join(gpu_cores),
    }
    return [(name, str(value)) for name, value in told.items() if value]


# Modules tools forget what a variable was: the stack of Lmod 8.6 keeps the value of an earlier load as the one to go
# back to, Environment Modules 5.2 only the first part of one with colons.
OVERRIDE = {
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
    -- Lmod's stack may be of an earlier load: the value of today is put on top of it
    local stack, value = os.getenv("__LMOD_STACK_%(name)s"), os.getenv("%(name)s")
    if mode() == "load" and stack and string.match(stack, "[^:]*") ~= (value and base64(value) or "false") then
        pushenv("%(name)s", value or false)
    end
    local ours = "%(value)s"
    pushenv("%(name)s", ours ~= "" and ours)
end
''',
    'Tcl': '''
set before {}
if { [module-info mode load] && [info exists ::env(%(name)s)] } { set before $::env(%(name)s) }
if { ![info exists ::ModuleTool] || $::ModuleTool ne {Modules} } {
    # Lmod looks what to keep when all of this has run, and finds our value: the user's is pushed first. Lmod loses
    # empty values and none: a word stands for them.
    set stack {} ; set ours {%(value)s} ; set word (none)
    if { [info exists ::env(__LMOD_STACK_%(name)s)] } { set stack [split $::env(__LMOD_STACK_%(name)s) :] }
    if { $before eq {} } { set before $word }
    if { $ours eq {} } { set ours $word }
    if { [module-info mode load] && [lindex $stack 0] ne [binary encode base64 $before] } { pushenv %(name)s $before }
    pushenv %(name)s $ours
    if { [module-info mode remove] ? [lindex $stack 1] eq [binary encode base64 $word] : $ours eq $word } {
        setenv %(name)s {}
    }
} elseif { [module-info mode unload] && [info exists ::env(__HPC_BEFORE_%(owner)s_%(name)s)] } {
    # with a value, and in this mode, it sets the variable
    unsetenv %(name)s $::env(__HPC_BEFORE_%(owner)s_%(name)s)
    setenv __HPC_BEFORE_%(owner)s_%(name)s {}
} elseif { [module-info mode unload] } {
    # a module that is loaded in the same call sees this value
    setenv %(name)s {}
} else {
    if { $before ne {} } { setenv __HPC_BEFORE_%(owner)s_%(name)s $before }
    setenv %(name)s {%(value)s}
}
''',
}


def override(generator, owner, name, value):
    """Set an environment variable, '' for none, while the module `owner` is loaded; then the user's comes back."""
    owner = ''.join(filter(str.isalnum, owner))
    return OVERRIDE[generator.SYNTAX] % {'name': name, 'value': value, 'owner': owner}


# what is checked and measured
CHECKED = ('PyTorch', 'torch_mpi')


def installed(modulepath):
    """Find what this collection has installed of PyTorch and its MPI backend: {module: its installation}."""
    found = {}
    for directory in filter(None, modulepath.split(':')):
        files = []
        for software in CHECKED:
            files += sorted(glob.glob(os.path.join(glob.escape(directory), software, '*')))
        for path in files:
            with open(path, encoding='utf-8', errors='replace') as handle:
                root = re.search(r'^(?:local root =|set root) "?(/[^"\n]+)', handle.read(), re.M)
            if root and os.path.exists(os.path.join(root.group(1), 'easybuild/provenance/provenance.json')):
                name = re.sub(r'\.lua$', '', os.path.relpath(path, directory))
                found.setdefault(name, root.group(1))
    return found
