"""What the page of GPU hours reads of deleted runs."""

from pathlib import Path

from megatron_operator.sdk.connection import AsyncConnection
from megatron_operator.ui.deleted_use import DeletedUse


async def test_a_namespace_without_records_is_named_as_by_the_command(kubeconfig: Path) -> None:
    connection = AsyncConnection(kubeconfig=kubeconfig)
    use = DeletedUse(connection, "elsewhere", (None,))
    assert await use.records() == "namespace elsewhere has no ConfigMap megatron-ledger-*"
    await connection.close()
