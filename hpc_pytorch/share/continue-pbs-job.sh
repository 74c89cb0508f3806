#!/usr/bin/env bash
# continue-pbs-job.sh SCRIPT: submits the script of this job again, and prints the number of the new job. That has what
# qsub was given for this one, and jobs that wait for this one wait for it, too. It gets what the user has exported, hence
# names with an underscore.
set -euo pipefail

# prints what the server says of a job; long values go on in lines that begin with a tab, and NCAR's qstat is a cache
about() {
    local job=$1 attribute=$2
    QSCACHE_BYPASS=true qstat -f "$job" | sed ':all; N; $!b all; s/\n\t//g' | sed -n "s/^    $attribute = //p"
}

# a server that is restarted, or busy, does not answer for a while; the time limit may be two minutes away
for _ in {1..9}; do
    ! about "$PBS_JOBID" job_state > /dev/null || break
    sleep 10
done
_given=$(about "$PBS_JOBID" Variable_List | sed 's/\\.//g' | tr , '\n' | sed -n 's/=.*//p')
_variables=HPC_JOB_RESTARTS
# resources such as job_priority, projects and groups may be charged; of an array, the array has what was typed
_typed=$(about "${PBS_ARRAY_ID:-$PBS_JOBID}" Submit_arguments)
read -ra _options <<< "-N $PBS_JOBNAME $(grep -oE -- '(^| )-(l *[a-z_]+=|W *group_list=|P *)[^ ]+' <<< "$_typed" | tr '\n' ' ')"
if grep -qx PATH <<< "$_given"; then
    _options+=(-V)
    _given=
fi
for _name in $_given; do
    # PBS sets its own again
    if [[ $_name != PBS_O_* && $_name != HPC_JOB_RESTARTS ]] && printenv "$_name" > /dev/null; then
        _variables+=,$_name
    fi
done
# of an array this part alone, whether -J was given to qsub or is in the script, where it counts again
[ -z "${PBS_ARRAY_INDEX:-}" ] || _options+=(-J "$PBS_ARRAY_INDEX-$((PBS_ARRAY_INDEX + 1)):2")
_account=$(about "$PBS_JOBID" Account_Name)
[ -z "$_account" ] || _options+=(-A "$_account")
# the one that it was submitted to; the job's own may be one that only routes lead to
[ -z "${PBS_O_QUEUE:-}" ] || _options+=(-q "$PBS_O_QUEUE")
# the script may have changed the directory: the next job starts, and has its output, where this one has
[ "${PBS_ENVIRONMENT:-}" = PBS_INTERACTIVE ] || cd "$PBS_O_WORKDIR"
export HPC_JOB_RESTARTS=$((${HPC_JOB_RESTARTS:-0} + 1))
next=$(qsub "${_options[@]}" -v "$_variables" "$1")
echo "$next"

# it continues, whatever becomes of those that wait
about "${PBS_ARRAY_ID:-$PBS_JOBID}" depend | tr , '\n' | sed -n 's/^before\(ok\|any\):/after\1:/p' |
    while IFS=: read -r kind others; do
        # jobs of an array may end at the same time, and undo each other's change: three times
        for pause in 0 ${PBS_ARRAY_ID:+$((RANDOM % 4)) $((RANDOM % 4))}; do
            sleep "$pause"
            for other in ${others//:/ }; do
                before=$(about "$other" depend)
                [[ $before == *"$next"* ]] || qalter -W depend="$before,$kind:$next" "$other" >&2
            done
        done
    done || true
