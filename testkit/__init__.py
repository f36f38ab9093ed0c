"""What tests, benchmarks and the demo share: faults to inject, a watched run, kubectl."""
