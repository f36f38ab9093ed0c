# Sourced by check.sh and test.sh: runs layers one after the other and prints a table of their seconds at the end.
# The table is printed after a failure too, with the layer that failed.

layer_names=() layer_seconds=() layer_results=()

layer() { # layer NAME COMMAND...
    local name=$1 started=$SECONDS status=0
    shift
    printf '\n=== %s\n' "$name"
    "$@" || status=$?
    layer_names+=("$name")
    layer_seconds+=($((SECONDS - started)))
    layer_results+=("$([ "$status" = 0 ] && echo passed || echo "failed ($status)")")
    return "$status"
}

print_layers() {
    local index total=0
    printf '\n%-72s %8s  %s\n' layer seconds result
    for index in "${!layer_names[@]}"; do
        printf '%-72s %8d  %s\n' "${layer_names[index]}" "${layer_seconds[index]}" "${layer_results[index]}"
        total=$((total + layer_seconds[index]))
    done
    printf '%-72s %8d\n' total "$total"
}
trap print_layers EXIT
