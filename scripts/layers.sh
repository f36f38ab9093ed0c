# Sourced by check.sh and test.sh: runs layers and prints a table of their seconds at the end, after a failure too.
# A layer that mostly waits can run in the background beside others: start_layer, later finish_layer.

# Each process would compile what it imports where bytecode may not be written: half of its processor time.
export PYTHONDONTWRITEBYTECODE=

layer_names=() layer_seconds=() layer_results=()
background_name='' background_pid='' background_started=0 background_output=''

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
export -f run_unit_tests run_tests_with_megatron

record_layer() { # record_layer NAME SECONDS STATUS
    layer_names+=("$1")
    layer_seconds+=("$2")
    layer_results+=("$([ "$3" = 0 ] && echo passed || echo "failed ($3)")")
}

layer() { # layer NAME COMMAND...
    local name=$1 started=$SECONDS status=0
    shift
    printf '\n=== %s\n' "$name"
    "$@" || status=$?
    record_layer "$name" $((SECONDS - started)) "$status"
    return "$status"
}

start_layer() { # start_layer NAME COMMAND...
    background_name=$1 background_started=$SECONDS background_output=$(mktemp)
    shift
    printf '\n=== %s: started in the background\n' "$background_name"
    # A session of its own, so that an interrupted run can end it as a whole; bash ignores SIGINT in the background.
    setsid env --default-signal=INT "$@" > "$background_output" 2>&1 < /dev/null &
    background_pid=$!
}

finish_layer() { # waits for the background layer and prints its output
    local status=0
    printf '\n=== %s\n' "$background_name"
    wait "$background_pid" || status=$?
    background_pid=''
    # What failed comes first: a log may be shown cut off.
    grep -E '^(FAILED|ERROR) ' "$background_output" || true
    cat "$background_output"
    rm -f "$background_output"
    record_layer "$background_name (beside others)" $((SECONDS - background_started)) "$status"
    return "$status"
}

end_layers() {
    if [ -n "$background_pid" ]; then
        # SIGINT lets pytest run its teardown, which stops what the layer started.
        kill -INT -- "-$background_pid" 2> /dev/null || true
        wait "$background_pid" || true
        tail -n 20 "$background_output"
        rm -f "$background_output"
        record_layer "$background_name (beside others)" $((SECONDS - background_started)) "not finished"
    fi
    local index
    printf '\n%-84s %8s  %s\n' layer seconds result
    for index in "${!layer_names[@]}"; do
        printf '%-84s %8d  %s\n' "${layer_names[index]}" "${layer_seconds[index]}" "${layer_results[index]}"
    done
    printf '%-84s %8d\n' 'wall time' "$SECONDS"
}
trap end_layers EXIT
