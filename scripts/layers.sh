# Sourced by check.sh and test.sh: runs layers and prints a table of their seconds at the end, after a failure too.
# What mostly waits runs beside others, as a lane: start_lane, at the end finish_lanes. The first failure ends all.

# A shell that starts the script in the background lets it ignore SIGINT, which then ends no pytest either.
if [[ $(trap -p INT) == *"''"* ]]; then exec env --default-signal=INT "$0" "$@"; fi

# Each process would compile what it imports where bytecode may not be written: half of its processor time.
export PYTHONDONTWRITEBYTECODE=
# Go's collector takes a sixth of the API server's processor time; memory is not what the layers compete for.
export GOGC=400

records=$(mktemp)
foreground_pid='' in_lane=''
declare -A lane_names=() lane_outputs=() # by process id

run_unit_tests() { # all but the trainer's
    .venv/bin/python -m pytest -q -n auto --maxprocesses 8 --dist worksteal -m "not forks" tests/unit tests/refusals \
        --ignore tests/unit/trainer
}

run_tests_with_megatron() { # in one process: every further one would import Megatron, 15 to 25 s of processor time
    local forks
    # Those that fork the test process run by themselves: it must have one thread.
    forks=$(grep -rl --include='test_*.py' 'mark\.forks' tests/unit)
    .venv/bin/python -m pytest -q -m "not forks" tests/unit/trainer tests/megatron &&
        # Their ranks abort on purpose: pytest would print a traceback of each.
        .venv/bin/python -m pytest -q -p no:faulthandler -m forks $forks
}

export -f run_unit_tests

record_layer() { # record_layer NAME SECONDS STATUS
    printf '%s\t%d\t%s\n' "$1" "$2" "$([ "$3" = 0 ] && echo passed || echo "failed ($3)")" >> "$records"
}

run_in_group() { # run_in_group PIDVAR COMMAND...: in the background, as a process group that can be ended whole
    local -n started_pid=$1
    shift
    set -m
    "$@" < /dev/null &
    started_pid=$!
    set +m
}

layer() { # layer NAME COMMAND...
    local name=$1 started=$SECONDS status=0
    shift
    printf '\n=== %s\n' "$name"
    if [ -n "$in_lane" ]; then
        "$@" || status=$?
        name="$name (beside others)"
    else
        run_in_group foreground_pid "$@"
        wait_for_foreground || status=$?
    fi
    record_layer "$name" $((SECONDS - started)) "$status"
    return "$status"
}

wait_for_foreground() { # a lane that fails meanwhile ends the run; bash runs traps only between commands, and in `wait`
    local ended status
    while true; do
        ended='' status=0
        wait -n -p ended "$foreground_pid" "${!lane_names[@]}" || status=$?
        if [ "$ended" = "$foreground_pid" ]; then
            foreground_pid=''
            return "$status"
        fi
        finish_lane "$ended" "$status" || exit "$status"
    done
}

start_lane() { # start_lane NAME COMMAND...
    local name=$1 output pid
    shift
    output=$(mktemp)
    printf '\n=== %s: started beside the others\n' "$name"
    run_in_group pid run_lane "$output" "$@"
    lane_names[$pid]=$name lane_outputs[$pid]=$output
}

run_lane() { # run_lane OUTPUT COMMAND...
    local output=$1
    shift
    in_lane=yes
    "$@" > "$output" 2>&1
}

finish_lane() { # finish_lane PID STATUS: prints what the lane has printed
    local name=${lane_names[$1]} output=${lane_outputs[$1]}
    unset "lane_names[$1]" "lane_outputs[$1]"
    printf '\n=== %s\n' "$name"
    # What failed comes first: a log may be shown cut off.
    grep -E '^(FAILED|ERROR) ' "$output" || true
    cat "$output"
    rm -f "$output"
    return "$2"
}

finish_lanes() {
    local ended status
    while [ "${#lane_names[@]}" -gt 0 ]; do
        ended='' status=0
        wait -n -p ended "${!lane_names[@]}" || status=$?
        finish_lane "$ended" "$status" || exit "$status"
    done
}

end_layers() {
    local pid
    for pid in $foreground_pid "${!lane_names[@]}"; do
        # SIGINT lets pytest run its teardown, which stops what the layer started.
        kill -INT -- "-$pid" 2> /dev/null || true
    done
    for pid in $foreground_pid "${!lane_names[@]}"; do
        wait "$pid" || true
    done
    for pid in "${!lane_names[@]}"; do
        printf '\n=== %s: not finished\n' "${lane_names[$pid]}"
        if grep -qE '^(FAILED|ERROR) ' "${lane_outputs[$pid]}"; then
            cat "${lane_outputs[$pid]}"
        else
            tail -n 20 "${lane_outputs[$pid]}"
        fi
        rm -f "${lane_outputs[$pid]}"
    done
    printf '\n%-95s %8s  %s\n' layer seconds result
    awk -F'\t' '{ printf "%-95s %8d  %s\n", $1, $2, $3 }' "$records"
    printf '%-95s %8d\n' 'wall time' "$SECONDS"
    rm -f "$records"
}
trap end_layers EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
