"""What tests, benchmarks and the demo share: kubectl, training runs, waits for a state, and faults to
inject."""
