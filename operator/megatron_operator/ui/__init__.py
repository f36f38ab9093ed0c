"""A read-only web page of training runs: `megatron ui`, and a Deployment of the chart. docs/ui.md."""
