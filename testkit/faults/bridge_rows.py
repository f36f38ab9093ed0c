"""The rows of the fault table whose run is a fine-tuning of all weights by Megatron-Bridge.

Faults that do not depend on the engine, such as those of nodes and of the control plane, have a row with
Megatron's own loop alone (rows.py).
"""

from testkit.faults import injections as inject
from testkit.faults.rows import SIGKILL, Row, kinds

BRIDGE_ROWS = (
    Row(
        "Megatron-Bridge: a rank is killed, worker pod",
        inject.kill_rank(1, 0),
        kinds("rank"),
        SIGKILL,
        reported=("pod", "rank"),
        extended=True,
    ),
    Row(
        "Megatron-Bridge: a rank hangs (SIGSTOP)",
        inject.stop_rank,
        kinds("hang"),
        r"rank {rank}",
        reported=("rank",),
        extended=True,
    ),
    Row(
        "Megatron-Bridge: a pod is evicted",
        inject.evict_pod,
        kinds("pod"),
        r"{pod}|received SIGTERM",
        reported=("pod",),
        extended=True,
    ),
    Row(
        "Megatron-Bridge: the newest checkpoint's shard is truncated",
        inject.damage(inject.shard_file, inject.truncate),
        kinds("rank"),
        SIGKILL,
        resumes="older",
    ),
    Row(
        "Megatron-Bridge: the newest checkpoint's train_state.pt is torn",
        inject.damage(inject.train_state_file, inject.tear),
        kinds("rank"),
        SIGKILL,
        resumes="older",
        extended=True,
    ),
    Row(
        "Megatron-Bridge: the newest checkpoint's run_config.yaml is missing",
        inject.damage(inject.run_config_file, inject.remove),
        kinds("rank"),
        SIGKILL,
        resumes="older",
        extended=True,
    ),
)
