#!/bin/sh
# Gathers the evidence of a hung or slow distributed job on one node and packs incident-<host>-<time>.tar.gz,
# which `nccl-forensics analyze` reads. Made by `nccl-forensics collect`; needs nothing installed here.
#
#   sh collect.sh [-o DIR] [-p PID]... [-j NAME=VALUE] [-f PATH]... [-w SECONDS] [-t SECONDS] [-T SECONDS] [-g] [-c]
#
#   -o DIR      where to put the tarball (default: here, else the first place that can be written)
#   -p PID      a process of the job (default: every process that the launcher gave a rank)
#   -j N=V      only processes with this variable, where several jobs share the node (SLURM_JOB_ID=123)
#   -f PATH     a log file or a folder of logs to take along; may be repeated
#   -w SECONDS  between the two samples of stacks and Flight Recorder dumps (default 5)
#   -t SECONDS  limit of one step (default 20)
#   -T SECONDS  limit of the whole collection (default 300)
#   -g          gdb stacks too where py-spy works (gdb is used anyway where it does not)
#   -c          write the tarball to standard output
#
# On every node of a job:
@LAUNCHERS@
#
# Every step has a time limit and is left behind where it cannot be ended, so that a dead driver holds nothing up. Stacks are taken by
# pausing each process for a moment; nothing is called inside it, no signal ends it, and one that was left stopped is continued.
# Values of variables that look like secrets are masked; log files are taken as they are. What could not be got stands in manifest.txt.

set -u
LC_ALL=C
export LC_ALL
PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
umask 077

# --- what every step needs -----------------------------------------------------------------------------------------------------

have() { command -v "$1" >/dev/null 2>&1; }

say() { printf '%s\n' "collect: $*" >&2; }

# Seconds since the node started: read without any tool.
now() {
    if read -r uptime _ 2>/dev/null </proc/uptime; then
        printf '%s' "${uptime%%.*}"
    elif have date; then
        date +%s
    else
        printf 0
    fi
}

# Most steps answer at once, so the first looks follow each other quickly.
pause() {
    case $1 in
        first) sleep 0.05 2>/dev/null || sleep 1 2>/dev/null ;;
        short) sleep 0.3 2>/dev/null || sleep 1 2>/dev/null ;;
        *) sleep "$1" 2>/dev/null ;;
    esac
}

# One line of the manifest: status, step, pid, rank, seconds, file, reason. Words of "-" stand for nothing. Steps that begin with "_" serve
# others and are not told.
record() {
    case $2 in _*) return 0 ;; esac
    printf 'nccl-forensics-collect: %s step=%s pid=%s rank=%s seconds=%s file=%s reason=%s\n' "$1" "$2" "$3" "$4" "$5" "$6" "$7" >>"$manifest"
    [ "$1" = ok ] || case $3 in -) say "$2: $1: $7" ;; *) say "$2 of process $3: $1: $7" ;; esac
}

# Says of a dump that it was written after it had been asked for, and when that was: how long a collective has lasted then shows.
look() {
    [ "$epoch" = 0 ] || printf 'nccl-forensics-collect: look step=%s pid=%s rank=%s at=%s file=%s\n' "$1" "$2" "$3" "$((epoch + $4 - began))" "$5" >>"$manifest"
}

# Prints the first line of a file that is not empty, cut, without control characters that would break the manifest.
first_line() {
    while IFS= read -r fl_line || [ -n "$fl_line" ]; do
        case $fl_line in *[![:space:]]*) printf '%.200s' "$fl_line"; return ;; esac
    done 2>/dev/null <"$1"
}

# begin STEP PID RANK FILE SECONDS COMMAND...: starts a command or function with a limit; its output goes to FILE.
begin() {
    b_step=$1 b_pid=$2 b_rank=$3 b_file=$4 b_limit=$5
    shift 5
    if ! have "$1"; then
        record absent "$b_step" "$b_pid" "$b_rank" 0 - "$1 is not installed"
        return 1
    fi
    b_now=$(now)
    if [ "$b_now" -ge "$end_at" ]; then
        record skipped "$b_step" "$b_pid" "$b_rank" 0 - "the time for the whole collection was over"
        return 1
    fi
    jobs_made=$((jobs_made + 1))
    job=$control/job$jobs_made
    printf '%s\n' "$b_step" "$b_pid" "$b_rank" "$b_file" "$b_now" "$((b_now + b_limit))" "$b_limit" >"$job"
    {
        "$@" >"$work/$b_file" 2>"$job.err" </dev/null &
        printf '%s' "$!" >"$job.pid"
        wait "$!"
        printf '%s' "$?" >"$job.rc"
    } >/dev/null 2>&1 </dev/null &
    pending="$pending $jobs_made"
}

# Waits for all that was begun, each to its own limit. What cannot be killed (a driver that is dead) is left behind and said.
settle() {
    looks=0
    while [ -n "${pending# }" ]; do
        still=''
        for number in $pending; do
            job=$control/job$number
            {
                read -r s_step
                read -r s_pid
                read -r s_rank
                read -r s_file
                read -r s_start
                read -r s_limit_at
                read -r s_limit
            } <"$job"
            s_now=$(now)
            if [ -s "$job.rc" ]; then
                read -r s_code <"$job.rc" || :
                finished "$((s_now - s_start))"
            elif [ "$s_now" -ge "$s_limit_at" ] || [ "$stopping" = 1 ]; then
                read -r s_child <"$job.pid" || :
                [ -z "${s_child:-}" ] || kill -9 "$s_child" 2>/dev/null
                pause short
                if [ ! -s "$job.rc" ] && [ -n "${s_child:-}" ] && kill -0 "$s_child" 2>/dev/null && stuck_in_kernel "$s_child"; then
                    record stuck "$s_step" "$s_pid" "$s_rank" "$s_limit" "$s_file" "no answer in $s_limit s, and it cannot be ended: it hangs in the kernel or a driver"
                else
                    record timeout "$s_step" "$s_pid" "$s_rank" "$s_limit" "$s_file" "no answer in $s_limit s"
                fi
                last=timeout
            else
                still="$still $number"
            fi
        done
        pending=$still
        looks=$((looks + 1))
        if [ -n "$pending" ]; then if [ "$looks" -lt 12 ]; then pause first; else pause short; fi; fi
    done
}

stuck_in_kernel() {
    read -r sk_line 2>/dev/null <"/proc/$1/stat" || return 1
    sk_line=${sk_line##*) }
    [ "${sk_line%% *}" = D ]
}

# A step that ended: judged by its exit code and by whether it printed anything.
finished() {
    f_reason=$(first_line "$job.err")
    if [ "$s_code" -eq 0 ] && [ -s "$work/$s_file" ]; then
        last=ok
        record ok "$s_step" "$s_pid" "$s_rank" "$1" "$s_file" -
        return
    fi
    last=failed
    if [ -s "$job.err" ]; then
        while IFS= read -r f_line || [ -n "$f_line" ]; do printf '%s\n' "$f_line"; done <"$job.err" >>"$work/$s_file"
    fi
    if [ -s "$work/$s_file" ]; then
        [ -n "$f_reason" ] || f_reason=$(first_line "$work/$s_file")
    else
        rm -f "$work/$s_file" 2>/dev/null
        s_file=-
    fi
    case $f_reason in
        *[Pp]ermission\ [Dd]enied* | *not\ permitted* | *must\ be\ root* | *superuser*) f_status=denied ;;
        *) f_status=failed ;;
    esac
    if [ "$s_code" -ne 0 ]; then f_reason="exit code $s_code${f_reason:+: $f_reason}"; else f_reason=${f_reason:-it printed nothing}; fi
    record "$f_status" "$s_step" "$s_pid" "$s_rank" "$1" "$s_file" "$f_reason"
}

# step STEP FILE COMMAND...: one command about the node, waited for; `last` says how it ended.
step() {
    st_name=$1 st_file=$2
    shift 2
    last=absent
    begin "$st_name" - - "$st_file" "$limit" "$@" && settle
    [ "$last" = ok ]
}

# Names in file names: only what every file system and the manifest can hold.
plain() {
    pl_text=$1 pl_out=''
    while [ -n "$pl_text" ]; do
        pl_rest=${pl_text#?} pl_char=${pl_text%"${pl_text#?}"}
        case $pl_char in [A-Za-z0-9._-]) pl_out=$pl_out$pl_char ;; *) pl_out=${pl_out}_ ;; esac
        pl_text=$pl_rest
    done
    printf '%s' "$pl_out"
}

# How a process is called in file names; its rank, where one is known, is what the analysis reads from them.
name_of() { if is_number "$2"; then printf 'rank%s-pid%s' "$2" "$1"; else printf 'pid%s' "$1"; fi; }

# --- secrets ---------------------------------------------------------------------------------------------------------------------

# One variable per line, values of telling names masked, then what looks like a secret anywhere.
masked_environ() {
    tr '\n\000' '\001\n' <"/proc/$1/environ" | masked_lines | tr '\001' ' '
}

masked_lines() {
    sed \
        -e '/^[A-Za-z_0-9]*[Pp][Aa][Ss][Ss][Ww]\([Oo][Rr]\)\{0,1\}[Dd][A-Za-z_0-9]*=/s/=.*/=***/' \
        -e '/^[A-Za-z_0-9]*[Pp][Aa][Ss][Ss]\([Pp][Hh][Rr][Aa][Ss][Ee]\)\{0,1\}=/s/=.*/=***/' \
        -e '/^[A-Za-z_0-9]*[Ss][Ee][Cc][Rr][Ee][Tt][A-Za-z_0-9]*=/s/=.*/=***/' \
        -e '/^[A-Za-z_0-9]*[Tt][Oo][Kk][Ee][Nn]\(_[A-Za-z_0-9]*\)\{0,1\}=/s/=.*/=***/' \
        -e '/^[A-Za-z_0-9]*[Cc][Rr][Ee][Dd][Ee][Nn][Tt][Ii][Aa][Ll][A-Za-z_0-9]*=/s/=.*/=***/' \
        -e '/^[A-Za-z_0-9]*[Aa][Pp][Ii]_\{0,1\}[Kk][Ee][Yy][A-Za-z_0-9]*=/s/=.*/=***/' \
        -e '/^[A-Za-z_0-9]*[Aa][Cc][Cc][Ee][Ss][Ss]_\{0,1\}[Kk][Ee][Yy][A-Za-z_0-9]*=/s/=.*/=***/' \
        -e '/^[A-Za-z_0-9]*[Pp][Rr][Ii][Vv][Aa][Tt][Ee]_\{0,1\}[Kk][Ee][Yy][A-Za-z_0-9]*=/s/=.*/=***/' \
        -e '/^\([A-Za-z_0-9]*_\)\{0,1\}[Kk][Ee][Yy]=/s/=.*/=***/' \
        -e '/^\([A-Za-z_0-9]*_\)\{0,1\}[Aa][Uu][Tt][Hh]\([Oo][Rr][Ii][Zz][Aa][Tt][Ii][Oo][Nn]\)\{0,1\}=/s/=.*/=***/' \
        -e '/^\([A-Za-z_0-9]*_\)\{0,1\}[Cc][Oo][Oo][Kk][Ii][Ee][Ss]\{0,1\}=/s/=.*/=***/' \
        -e '/^[A-Za-z_0-9]*_[Pp][Ww][Dd]=/s/=.*/=***/' \
        -e 's/-----BEGIN [A-Z ]*PRIVATE KEY-----.*/***/' \
        -e 's#\([A-Za-z][A-Za-z0-9+.-]*://\)[^/:@[:space:]]*:[^/@[:space:]]*@#\1***:***@#g' \
        -e 's/\(--[A-Za-z_-]*[Pp]assw[ord]*[= ]\)[^[:space:]]*/\1***/g' -e 's/\(--[A-Za-z_-]*[Tt]oken[= ]\)[^[:space:]]*/\1***/g' \
        -e 's/\(--[A-Za-z_-]*[Ss]ecret[= ]\)[^[:space:]]*/\1***/g' -e 's/\(--[A-Za-z_-]*[Kk]ey[= ]\)[^[:space:]]*/\1***/g' \
        -e 's/\([Bb]earer \)[A-Za-z0-9._~+/-]\{8,\}/\1***/g' \
        -e 's/AKIA[0-9A-Z]\{16\}/***/g' -e 's/ASIA[0-9A-Z]\{16\}/***/g' \
        -e 's/AIza[0-9A-Za-z_-]\{35\}/***/g' \
        -e 's/gh[pousr]_[A-Za-z0-9]\{20,\}/***/g' -e 's/github_pat_[A-Za-z0-9_]\{20,\}/***/g' \
        -e 's/glpat-[A-Za-z0-9_-]\{20,\}/***/g' -e 's/hf_[A-Za-z0-9]\{20,\}/***/g' \
        -e 's/sk-[A-Za-z0-9_-]\{20,\}/***/g' -e 's/xox[abprs]-[A-Za-z0-9-]\{10,\}/***/g' \
        -e 's/eyJ[A-Za-z0-9_-]\{10,\}\.[A-Za-z0-9_-]\{10,\}\.[A-Za-z0-9_-]\{5,\}/***/g'
}

# --- the processes of the job --------------------------------------------------------------------------------------------------

# Writes "pid rank how" of each process that a launcher gave a rank; `how` is own (RANK) or task (of the launcher's task).
# Reading a process whose memory map is locked can hang for ever: the process that is looked at stands in $control/at.
find_ranks() {
    fr_seen=$find_after
    for fr_dir in /proc/[0-9]*; do
        fr_pid=${fr_dir#/proc/}
        if [ -n "$fr_seen" ]; then
            [ "$fr_pid" != "$fr_seen" ] || fr_seen=''
            continue
        fi
        printf '%s' "$fr_pid" >"$control/at"
        [ "$fr_pid" != "$$" ] && [ -r "$fr_dir/environ" ] || continue
        tr '\n\000' '\001\n' <"$fr_dir/environ" >"$control/environ" 2>/dev/null || continue
        fr_own='' fr_task='' fr_world='' fr_fits=$job_only
        while IFS= read -r fr_line; do
            [ "$fr_line" != "$job_only" ] || fr_fits=''
            case $fr_line in
                RANK=*) fr_own=${fr_line#*=} ;;
                WORLD_SIZE=* | OMPI_COMM_WORLD_SIZE=* | PMI_SIZE=* | SLURM_NTASKS=*) fr_world=${fr_line#*=} ;;
                OMPI_COMM_WORLD_RANK=* | PMIX_RANK=* | PMI_RANK=* | SLURM_PROCID=*) fr_task=${fr_line#*=} ;;
            esac
        done <"$control/environ"
        [ -n "$fr_own$fr_task" ] && [ -n "$fr_world" ] && [ -z "$fr_fits" ] || continue
        is_job "$fr_pid" || continue
        if is_number "$fr_own"; then
            printf '%s %s own\n' "$fr_pid" "$fr_own"
        elif is_number "$fr_task"; then
            printf '%s %s task\n' "$fr_pid" "$fr_task"
        fi
    done
    printf 'end 0 end\n'
}

is_number() { case $1 in '' | *[!0-9]*) return 1 ;; esac; }

# Python, or something that holds a communication library: not the shells and launchers that have the same variables.
is_job() {
    read -r ij_name 2>/dev/null <"/proc/$1/comm" || return 1
    case $ij_name in
        python* | pt_main_thread* | ray::*) return 0 ;;
        sh | bash | dash | srun | slurm* | sleep | tee | mpirun | orted | prted) return 1 ;;
    esac
    have grep && grep -q -E 'libnccl|librccl|libtorch|libcudart|libcuda\.so|libhip|libmpi' "/proc/$1/maps" 2>/dev/null
}

parent_of() {
    while read -r po_key po_value; do
        case $po_key in PPid:) printf '%s' "$po_value"; return ;; esac
    done 2>/dev/null <"/proc/$1/status"
}

# Fills $processes with lines "pid rank": the topmost process of each rank; data workers have the variables of their parent.
find_processes() {
    find_after=''
    tries=0
    : >"$work/found"
    while [ "$tries" -lt 8 ]; do
        tries=$((tries + 1))
        begin processes - - found.part "$limit" find_ranks || break
        settle_quietly
        while read -r fp_pid fp_rank fp_how; do
            [ "$fp_how" = end ] || printf '%s %s %s\n' "$fp_pid" "$fp_rank" "$fp_how"
            fp_last=$fp_how
        done <"$work/found.part" >>"$work/found"
        [ "${fp_last:-}" != end ] || break
        find_after=''
        read -r find_after 2>/dev/null <"$control/at" || :
        [ -n "$find_after" ] && [ "$(now)" -lt "$end_at" ] || break
        record stuck processes "$find_after" - "$limit" - "reading its environment hangs: its memory is locked in the kernel"
    done
    rm -f "$work/found.part"
    has_own=0
    while read -r fp_pid fp_rank fp_how; do [ "$fp_how" = own ] && has_own=1; done <"$work/found"
    ids=' '
    while read -r fp_pid fp_rank fp_how; do
        [ "$has_own" = 1 ] && [ "$fp_how" = task ] && continue
        ids="$ids$fp_pid:$fp_rank "
    done <"$work/found"
    rm -f "$work/found"
    for pair in $ids; do
        fp_pid=${pair%:*} fp_rank=${pair#*:}
        above=$fp_pid top=1
        while above=$(parent_of "$above") && [ -n "$above" ] && [ "$above" -gt 1 ]; do
            case $ids in *" $above:$fp_rank "*) top=0; break ;; esac
        done
        [ "$top" = 0 ] || printf '%s %s\n' "$fp_pid" "$fp_rank"
    done >"$processes"
}

# As settle, for the search of processes: it hangs only where it stays with one process for the limit of a step.
settle_quietly() {
    sq_job=$control/job$jobs_made
    sq_before='' sq_since=$(now)
    while [ ! -s "$sq_job.rc" ] && [ "$(now)" -lt "$((sq_since + limit))" ] && [ "$(now)" -lt "$end_at" ]; do
        pause first
        sq_at=''
        read -r sq_at 2>/dev/null <"$control/at" || :
        if [ "$sq_at" != "$sq_before" ]; then sq_before=$sq_at sq_since=$(now); fi
    done
    if [ ! -s "$sq_job.rc" ]; then
        read -r sq_child <"$sq_job.pid" || :
        [ -z "${sq_child:-}" ] || kill -9 "$sq_child" 2>/dev/null
    fi
    pending=''
}

# variable PID NAME: its value in the environment of the process, from the copy that was made of it.
variable() {
    [ -r "$control/env$1" ] || return 0
    while IFS= read -r va_line; do
        case $va_line in "$2="*) printf '%s' "${va_line#*=}"; return ;; esac
    done <"$control/env$1"
}

copy_environ() { tr '\n\000' '\001\n' <"/proc/$1/environ"; }

environments() {
    while read -r en_pid en_rank; do
        name=$(name_of "$en_pid" "$en_rank")
        if have sed && have tr; then
            begin environment "$en_pid" "$en_rank" "processes/$name-environment.txt" "$limit" masked_environ "$en_pid"
            # Unmasked, and only in the control folder, which is never packed: where dumps and logs are.
            begin _environment "$en_pid" "$en_rank" "../$control_name/env$en_pid" "$limit" copy_environ "$en_pid"
        else
            record absent environment "$en_pid" "$en_rank" 0 - "sed or tr is not installed, and an environment is not taken unmasked"
        fi
        begin limits "$en_pid" "$en_rank" "processes/$name-limits.txt" "$limit" put "/proc/$en_pid/limits"
    done <"$processes"
    settle
}

put() {
    while IFS= read -r pu_line || [ -n "$pu_line" ]; do printf '%s\n' "$pu_line"; done <"$1"
}

# --- stacks and Flight Recorder dumps, twice -------------------------------------------------------------------------------------

# The sampler on the path, else beside the interpreter of the process, if that runs as the user who collects.
sampler_of() {
    if have "$1"; then printf '%s' "$1"; return; fi
    have readlink || return 0
    so_exe=$(readlink "/proc/$2/exe" 2>/dev/null) || return 0
    [ "$(user_of "$2")" = "$(user_of self)" ] || return 0
    for so_dir in "${so_exe%/*}" "$(variable "$2" VIRTUAL_ENV)/bin" "$(variable "$2" CONDA_PREFIX)/bin"; do
        if [ -x "$so_dir/$1" ]; then printf '%s' "$so_dir/$1"; return; fi
    done
}

user_of() {
    while read -r uo_key _ uo_user _; do
        case $uo_key in Uid:) printf '%s' "$uo_user"; return ;; esac
    done 2>/dev/null <"/proc/$1/status"
}

state_of() {
    read -r sf_line 2>/dev/null <"/proc/$1/stat" || return 0
    sf_line=${sf_line##*) }
    printf '%s' "${sf_line%% *}"
}

kernel_stack() {
    for ks_task in "/proc/$1/task"/*; do
        ks_name='' ks_wait=''
        read -r ks_name 2>/dev/null <"$ks_task/comm" || :
        read -r ks_wait 2>/dev/null <"$ks_task/wchan" || :
        printf 'thread %s %s state %s waits in %s\n' "${ks_task##*/}" "$ks_name" "$(state_of "$1/task/${ks_task##*/}")" "$ks_wait"
        put "$ks_task/stack" 2>/dev/null
    done
}

stacks() {
    while read -r sa_pid sa_rank; do
        name=$(name_of "$sa_pid" "$sa_rank")
        if ! [ -d "/proc/$sa_pid" ]; then
            record absent stack "$sa_pid" "$sa_rank" 0 - "the process ended during the collection"
            continue
        fi
        state_of "$sa_pid" >"$control/state$sa_pid"
        spy=$(sampler_of py-spy "$sa_pid")
        if [ -n "$spy" ]; then
            begin stack "$sa_pid" "$sa_rank" "stacks-$1/$name-pyspy.txt" "$limit" "$spy" dump --pid "$sa_pid"
        else
            record absent stack "$sa_pid" "$sa_rank" 0 - "py-spy is not installed"
        fi
        [ "$1" != first ] || begin kernel-stack "$sa_pid" "$sa_rank" "stacks-$1/$name-kernel.txt" "$limit" kernel_stack "$sa_pid"
    done <"$processes"
    settle
    while read -r sa_pid sa_rank; do
        name=$(name_of "$sa_pid" "$sa_rank")
        [ -d "/proc/$sa_pid" ] || continue
        if [ "$with_gdb" = 1 ] || [ ! -s "$work/stacks-$1/$name-pyspy.txt" ] || ! spied "$1" "$name"; then
            # It reads the symbols of all libraries first, which takes its time; asking servers for more would take longer.
            begin stack "$sa_pid" "$sa_rank" "stacks-$1/$name-gdb.txt" "$((limit * 3))" \
                gdb -nx -batch -iex 'set debuginfod enabled off' -iex 'set auto-load off' -ex 'set pagination off' \
                -ex 'thread apply all bt 64' -p "$sa_pid"
        fi
    done <"$processes"
    settle
    # A sampler that was ended in the middle may leave a process stopped: let it go on, if it was not stopped before.
    while read -r sa_pid sa_rank; do
        before=''
        read -r before 2>/dev/null <"$control/state$sa_pid" || :
        case $(state_of "$sa_pid") in T | t) [ "$before" = T ] || kill -CONT "$sa_pid" 2>/dev/null ;; esac
    done <"$processes"
}

spied() {
    while IFS= read -r sp_line; do
        case $sp_line in Thread\ * | Process\ *) return 0 ;; esac
    done <"$work/stacks-$1/$2-pyspy.txt"
    return 1
}

# in_process PID PATH: the path as the process sees it, which may live in a container.
in_process() {
    if [ -e "$2" ]; then printf '%s' "$2"; elif [ -e "/proc/$1/root$2" ]; then printf '%s' "/proc/$1/root$2"; fi
}

ring() { printf 1 >"$1"; }

post() { curl -s -S --max-time "$limit" --unix-socket "$1" -X POST "http://localhost/handler/$2"; }

# Asks each process for a dump through its pipe or its control socket, then takes what lies there.
recorders() {
    asked=0
    asked_at=$(now)
    : >"$control/asked-$1"
    while read -r re_pid re_rank; do
        is_number "$re_rank" || continue
        pipe=$(in_process "$re_pid" "$(variable "$re_pid" TORCH_NCCL_DEBUG_INFO_PIPE_FILE)$re_rank.pipe")
        if [ -n "$pipe" ] && [ -p "$pipe" ]; then
            begin flight-recorder-request "$re_pid" "$re_rank" "../$control_name/ring$re_pid" 5 ring "$pipe" && asked=1
        fi
    done <"$processes"
    settle_requests
    [ "$asked" = 0 ] || pause 2
    while read -r re_pid re_rank; do
        if ! is_number "$re_rank"; then
            [ "$1" != first ] || record absent flight-recorder "$re_pid" - 0 - "its rank is not known, and the file of its dump is named by it"
            continue
        fi
        socket=$(in_process "$re_pid" "$(variable "$re_pid" TORCH_WORKER_SERVER_SOCKET)")
        if [ -n "$socket" ] && [ -S "$socket" ]; then
            begin flight-recorder "$re_pid" "$re_rank" "recorder-$1/fr_trace_rank_$re_rank" "$limit" post "$socket" dump_nccl_trace_pickle
            printf '%s %s\n' "$re_pid" "$re_rank" >>"$control/fresh-$1"
            continue
        fi
        dump=''
        for prefix in "$(variable "$re_pid" TORCH_FR_DUMP_TEMP_FILE)" "$(variable "$re_pid" TORCH_NCCL_DEBUG_INFO_TEMP_FILE)" \
            "$(variable "$re_pid" XDG_CACHE_HOME)/torch/comm_lib_trace_rank_" "$(variable "$re_pid" HOME)/.cache/torch/comm_lib_trace_rank_" \
            /tmp/nccl_trace_rank_; do
            [ -n "$prefix" ] && [ "${prefix#/torch}" = "$prefix" ] && dump=$(in_process "$re_pid" "$prefix$re_rank")
            [ -z "$dump" ] || break
        done
        if [ -n "$dump" ] && [ -f "$dump" ]; then
            # What lay there before was written who knows when.
            newer "$dump" "$control/asked-$1" && printf '%s %s\n' "$re_pid" "$re_rank" >>"$control/fresh-$1"
            begin flight-recorder "$re_pid" "$re_rank" "recorder-$1/fr_trace_rank_$re_rank" "$limit" cat "$dump"
        elif [ "$1" = first ]; then
            record absent flight-recorder "$re_pid" "$re_rank" 0 - "no dump lies there, and the process has no pipe to ask for one (TORCH_NCCL_DEBUG_INFO_PIPE_FILE)"
        fi
    done <"$processes"
    settle
    [ -f "$control/fresh-$1" ] || return 0
    while read -r re_pid re_rank; do
        [ ! -s "$work/recorder-$1/fr_trace_rank_$re_rank" ] || look flight-recorder "$re_pid" "$re_rank" "$asked_at" "recorder-$1/fr_trace_rank_$re_rank"
    done <"$control/fresh-$1"
}

# Some shells lack the test of which file is newer: then nothing is known.
newer() { [ "$1" -nt "$2" ] 2>/dev/null; }

# Requests answer nothing; only one that could not be made is worth a line.
settle_requests() {
    for number in $pending; do
        job=$control/job$number
        sr_until=$(($(now) + 5))
        while [ ! -s "$job.rc" ] && [ "$(now)" -lt "$sr_until" ]; do pause first; done
        if [ ! -s "$job.rc" ]; then
            read -r sr_child <"$job.pid" || :
            [ -z "${sr_child:-}" ] || kill -9 "$sr_child" 2>/dev/null
            {
                read -r _
                read -r sr_pid
                read -r sr_rank
            } <"$job"
            record timeout flight-recorder "$sr_pid" "$sr_rank" 5 - "nobody reads its pipe: the thread that would dump is stuck"
        fi
    done
    pending=''
}

# --- logs ------------------------------------------------------------------------------------------------------------------------

# take FILE NAME: a log as it is, of a very big one its start and its end.
take() {
    [ -f "$1" ] && [ -s "$1" ] || return 0
    case "$taken" in *"|$1|"*) return 0 ;; esac
    taken="$taken$1|"
    if ! [ -r "$1" ]; then
        record denied logs - - 0 - "$1 cannot be read"
        return 0
    fi
    begin logs - - "logs/$2" "$limit" log_start "$1"
    settle
}

log_start() {
    if have wc && have head && have tail; then
        ls_size=$(wc -c <"$1")
        if [ "$ls_size" -gt 268435456 ]; then
            head -c 33554432 "$1"
            printf '\ncollect: the middle of this file was left out\n'
            tail -c 201326592 "$1"
            return
        fi
    fi
    cat "$1"
}

given_logs() {
    gl_depth=${3:-0}
    if [ -d "$1" ]; then
        [ "$gl_depth" -lt 4 ] || return 0
        for gl_file in "$1"/*; do given_logs "$gl_file" "$2-$(plain "${gl_file##*/}")" "$((gl_depth + 1))"; done
    elif [ -f "$1" ]; then
        take "$1" "$2"
    elif [ "$gl_depth" = 0 ]; then
        record absent logs - - 0 - "$1: there is no such file or folder"
    fi
}

job_logs() {
    while read -r jl_pid jl_rank; do
        name=$(name_of "$jl_pid" "$jl_rank")
        debug_file=$(variable "$jl_pid" NCCL_DEBUG_FILE)
        while :; do
            case $debug_file in
                *%h*) debug_file=${debug_file%%\%h*}$host${debug_file#*\%h} ;;
                *%p*) debug_file=${debug_file%%\%p*}$jl_pid${debug_file#*\%p} ;;
                *) break ;;
            esac
        done
        [ -z "$debug_file" ] || take "$(in_process "$jl_pid" "$debug_file")" "$name-nccl.log"
        have readlink || continue
        for stream in 1 2; do
            target=$(readlink "/proc/$jl_pid/fd/$stream" 2>/dev/null) || continue
            case $target in
                /dev/* | *' (deleted)') ;;
                /*) take "$(in_process "$jl_pid" "$target")" "$name-$([ "$stream" = 1 ] && printf stdout || printf stderr).log" ;;
            esac
        done
        error_file=$(variable "$jl_pid" TORCHELASTIC_ERROR_FILE)
        [ -z "$error_file" ] || take "$(in_process "$jl_pid" "$error_file")" "$name-error.json"
    done <"$processes"
}

# --- the node --------------------------------------------------------------------------------------------------------------------

gpus() {
    step nvidia-smi host/nvidia-smi-q.txt nvidia-smi -q
    if [ "$last" = timeout ]; then
        for what in nvlink gpu-topology; do record skipped "$what" - - 0 - "nvidia-smi does not answer"; done
    elif [ "$last" != absent ]; then
        step nvlink host/nvlink-status.txt nvidia-smi nvlink -s
        step nvlink-errors host/nvlink-errors.txt nvidia-smi nvlink -e
        step gpu-topology host/gpu-topology.txt nvidia-smi topo -m
    fi
    if have nvidia-imex-ctl; then step imex host/imex.txt nvidia-imex-ctl -N; fi
    if have rocm-smi; then step rocm-smi host/rocm-smi.txt rocm-smi -a; fi
}

kernel_log() {
    step kernel-log host/dmesg.txt dmesg -T ||
        step kernel-log host/dmesg.txt dmesg ||
        step kernel-log host/journal-kernel.txt journalctl -k --no-pager -o short-iso -n 20000 || {
        for kl_file in /var/log/kern.log /var/log/messages; do
            if [ -r "$kl_file" ]; then step kernel-log "host/${kl_file##*/}.txt" tail -n 20000 "$kl_file" && return; fi
        done
    }
}

infiniband_counters() {
    for ic_file in /sys/class/infiniband/*/ports/*/*counters/* /sys/class/infiniband/*/ports/*/state /sys/class/infiniband/*/ports/*/phys_state \
        /sys/class/infiniband/*/ports/*/rate /sys/class/infiniband/*/ports/*/link_layer; do
        [ -f "$ic_file" ] && read -r ic_value 2>/dev/null <"$ic_file" && printf '%s:%s\n' "$ic_file" "$ic_value"
    done
}

infiniband() {
    if ! [ -d /sys/class/infiniband ]; then
        record ok infiniband - - 0 - "the node has no RDMA device"
        return
    fi
    step infiniband host/ib-counters.txt infiniband_counters
    step infiniband-state host/ibv-devinfo.txt ibv_devinfo -v || step infiniband-state host/ibstat.txt ibstat || step infiniband-state host/rdma-link.txt rdma link
}

# Each card behind a device (no bridge, no container's end) with the command above its output: what it prints does not always name the card.
ethernet_cards() {
    for ec_card in /sys/class/net/*; do
        [ -e "$ec_card/device" ] || continue
        for ec_option in -i -a -g -k -m -S; do
            echo "\$ ethtool $ec_option ${ec_card##*/}"
            ethtool "$ec_option" "${ec_card##*/}" 2>/dev/null || :
        done
    done
}

network() {
    step network host/ip-addr.txt ip addr || step network host/ifconfig.txt ifconfig -a
    step routes host/ip-route.txt ip route
    step sockets host/ss.txt ss -tin
    step ip-counters host/netstat.txt netstat -s || step ip-counters host/nstat.txt nstat -az
    if have ethtool && ls -d /sys/class/net/*/device >/dev/null 2>&1; then step ethernet host/ethtool.txt ethernet_cards; fi
}

# How long processes wait for memory, storage and processors. Each line with its file: what a line says does not name what is short.
pressure() {
    for pr_file in /proc/pressure/cpu /proc/pressure/memory /proc/pressure/io /proc/pressure/irq; do
        [ -r "$pr_file" ] || continue
        while IFS= read -r pr_line; do printf '%s:%s\n' "$pr_file" "$pr_line"; done <"$pr_file" 2>/dev/null
    done
}

# What may be forbidden between nodes. Listing the rules takes root.
firewall() {
    if have iptables; then
        step firewall host/iptables.txt iptables -L -n -v
    elif have nft; then
        step firewall host/nft.txt nft list ruleset
    fi
    if have ip; then step routes host/ip-rule.txt ip rule; fi
}

process_list() {
    if ps -eo pid,ppid,stat,wchan:32,pcpu,rss,etime,args >"$control/ps" 2>/dev/null; then
        masked_lines <"$control/ps"
    else
        ps | masked_lines
    fi
}

node() {
    gpus
    kernel_log
    infiniband
    network
    firewall
    step limits host/limits.txt put /proc/self/limits
    step shared-memory host/df.txt df -k
    step memory host/meminfo.txt put /proc/meminfo
    if [ -d /proc/pressure ]; then step pressure host/pressure.txt pressure; fi
    if have lscpu; then step processors host/lscpu.txt lscpu; fi
    if have numactl; then step processors host/numactl.txt numactl -H; fi
    if have sed; then
        step process-list host/ps.txt process_list
    else
        record absent process-list - - 0 - "sed is not installed, and a list of commands is not taken unmasked"
    fi
    step pcie host/lspci.txt lspci -vv
    if have scontrol; then
        jobid=''
        while read -r no_pid _; do jobid=$(variable "$no_pid" SLURM_JOB_ID); break; done <"$processes"
        [ -z "$jobid" ] || step scheduler host/scontrol-job.txt scontrol show job "$jobid"
        step scheduler host/scontrol-node.txt scontrol show node "$host"
    fi
    if have ncclras; then step ras host/ncclras.txt ncclras -v; fi
}

# --- packing ---------------------------------------------------------------------------------------------------------------------

pack() {
    [ "${packed:-0}" = 0 ] || return 0
    packed=1
    printf 'nccl-forensics-collect: end seconds=%s\n' "$(($(now) - began))" >>"$manifest"
    rm -rf "$control"
    cd "$base" || return 1
    archive=''
    if have tar; then
        if have gzip && tar -cf - "$folder" 2>/dev/null | gzip -c >"$folder.tar.gz.part" 2>/dev/null && [ -s "$folder.tar.gz.part" ]; then
            archive=$folder.tar.gz
        elif tar -cf "$folder.tar.gz.part" "$folder" 2>/dev/null; then
            archive=$folder.tar
        fi
    fi
    if [ -n "$archive" ]; then
        mv "$folder.tar.gz.part" "$archive" && rm -rf "$work"
        if [ "$to_stdout" = 1 ]; then cat "$archive" && rm -f "$archive"; else printf '%s\n' "$base/$archive"; fi
    else
        rm -f "$folder.tar.gz.part"
        say "tar is not installed or the disk is full: the folder is left as it is"
        printf '%s\n' "$work"
    fi
}

stop() {
    stopping=1
    say "stopped: packing what is there"
    settle
    printf 'nccl-forensics-collect: interrupted\n' >>"$manifest"
    pack
    trap - EXIT
    exit "$1"
}

usage() {
    printf '%s\n' 'usage: sh collect.sh [-o DIR] [-p PID]... [-j NAME=VALUE] [-f PATH]... [-w SECONDS] [-t SECONDS] [-T SECONDS] [-g] [-c]' >&2
    exit 2
}

main() {
    base='' given='' wait_for=5 limit=20 total=300 with_gdb=0 to_stdout=0 logs_given='' job_only='' taken='|' pending='' jobs_made=0 stopping=0 last=''
    newline='
'
    while getopts o:p:j:f:w:t:T:gch option; do
        case $option in
            o) base=$OPTARG ;;
            p) is_number "$OPTARG" || usage; given="$given $OPTARG" ;;
            j) job_only=$OPTARG ;;
            f) logs_given=$logs_given$OPTARG$newline ;;
            w) is_number "$OPTARG" || usage; wait_for=$OPTARG ;;
            t) is_number "$OPTARG" || usage; limit=$OPTARG ;;
            T) is_number "$OPTARG" || usage; total=$OPTARG ;;
            g) with_gdb=1 ;;
            c) to_stdout=1 ;;
            *) usage ;;
        esac
    done
    host=$(uname -n 2>/dev/null) || host=''
    [ -n "$host" ] || read -r host </proc/sys/kernel/hostname || host=unknown-host
    host=$(plain "${host%%.*}")
    stamp=$(date -u +%Y%m%dT%H%M%SZ 2>/dev/null) || stamp=undated
    folder=incident-$host-$stamp
    [ -z "$base" ] || mkdir -p "$base" 2>/dev/null
    for place in ${base:+"$base"} . "${TMPDIR:-/tmp}" /var/tmp /dev/shm; do
        work=$place/$folder
        if mkdir "$work" 2>/dev/null && : >"$work/manifest.txt"; then break; fi
        work=''
    done
    [ -n "$work" ] || { say "nothing can be written: not here, not in /tmp"; exit 5; }
    [ "$place" = "${base:-.}" ] || say "${base:-this folder} cannot be written: using $place"
    base=$(cd "$place" && pwd)
    work=$base/$folder
    manifest=$work/manifest.txt
    control_name=.$folder-control
    control=$base/$control_name
    mkdir -p "$control" "$work/processes" "$work/stacks-first" "$work/stacks-second" "$work/recorder-first" "$work/recorder-second" "$work/logs" "$work/host"
    processes=$control/processes
    : >"$processes"
    began=$(now)
    epoch=$(date +%s 2>/dev/null) || epoch=0
    is_number "$epoch" || epoch=0
    end_at=$((began + total))
    trap 'stop 130' INT
    trap 'stop 143' TERM
    trap 'stop 129' HUP
    trap 'rm -rf "$control"' EXIT
    printf 'nccl-forensics-collect: begin version=1 host=%s time=%s\n' "$host" "$stamp" >>"$manifest"
    say "gathering on $host, at most $total s"

    if [ -n "$given" ]; then
        for pid in $given; do
            if [ -d "/proc/$pid" ]; then printf '%s %s\n' "$pid" "$pid" >>"$control/given"; else record absent processes "$pid" - 0 - "there is no such process"; fi
        done
        given_ranks
    elif have tr; then
        find_processes
    else
        record absent processes - - 0 - "tr is not installed, so the processes of the job cannot be told: name them with -p"
    fi
    if [ -s "$processes" ]; then
        while read -r pid rank; do record ok processes "$pid" "$rank" 0 - -; done <"$processes"
    elif have tr || [ -n "$given" ]; then
        record absent processes - - 0 - "no process on this node was given a rank by a launcher, or none may be read by this user"
    fi
    environments
    stacks first
    recorders first
    sampled=$(now)
    node
    if [ -s "$processes" ]; then
        while [ "$(now)" -lt "$((sampled + wait_for))" ]; do pause 1; done
        stacks second
        recorders second
    fi
    job_logs
    while IFS= read -r log; do [ -z "$log" ] || given_logs "$log" "$(plain "${log##*/}")"; done <<EOF
$logs_given
EOF
    pack
}

# Ranks of the processes that were named, where their environment tells; "-" where it does not.
given_ranks() {
    [ -s "$control/given" ] || return 0
    while read -r gr_pid _; do
        gr_rank=-
        if have tr && tr '\n\000' '\001\n' <"/proc/$gr_pid/environ" >"$control/env$gr_pid" 2>/dev/null; then
            for gr_name in RANK OMPI_COMM_WORLD_RANK PMIX_RANK PMI_RANK SLURM_PROCID; do
                gr_value=$(variable "$gr_pid" "$gr_name")
                if is_number "$gr_value"; then gr_rank=$gr_value; break; fi
            done
        fi
        printf '%s %s\n' "$gr_pid" "$gr_rank"
    done <"$control/given" >>"$processes"
}

main "$@"
