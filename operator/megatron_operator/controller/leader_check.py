"""`helm test`: whether an operator leads and may read recipes (`python -m ...controller.leader_check`).

Exit code 0 when it does; otherwise 1, with what is wrong on stderr.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Final

import click

from megatron_operator.api.errors import OperatorError, described
from megatron_operator.controller.api_client import EXPECTED_ERRORS, ApiClient
from megatron_operator.controller.api_resources import LEASES, RECIPES

LIMIT: Final = 60.0
"""Seconds within which a leader must be elected and renew its Lease."""
PAUSE: Final = 1.0
"""Seconds between two reads of the Lease."""


class NoLeaderError(OperatorError):
    """No operator holds the Lease and renews it."""


async def check(
    api: ApiClient,
    namespace: str,
    lease: str,
    recipes_of: str | None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> str:
    """The leader, once it has renewed its Lease. Raises NoLeaderError and EXPECTED_ERRORS.

    Args:
        api: With the operator's rights.
        namespace: That of the Lease.
        lease: Its name.
        recipes_of: A namespace whose recipes the operator must be able to read; None for all.
        sleep: Waits for so many seconds.
    """
    async for _ in api.pages(RECIPES, recipes_of):
        break
    first: tuple[str, str] | None = None
    for _ in range(round(LIMIT / PAUSE)):
        found = await api.get(LEASES, namespace, lease)
        holder = str(((found or {}).get("spec") or {}).get("holderIdentity") or "")
        if found is not None and holder:
            # No clock is compared with that of the leader: a renewal changes the version.
            seen = holder, str(found["metadata"]["resourceVersion"])
            if first is not None and first[0] == holder and first != seen:
                return holder
            first = seen
        await sleep(PAUSE)
    state = f"{first[0]} holds it and does not renew it" if first else "nobody holds it"
    raise NoLeaderError(
        f"Lease {namespace}/{lease}: {state} for {LIMIT:.0f} s; "
        f"see `kubectl -n {namespace} get pods` and the operator's log"
    )


async def _run(namespace: str, lease: str, recipes_of: str | None) -> str:
    api = await ApiClient.connect()
    try:
        return await check(api, namespace, lease, recipes_of)
    finally:
        await api.close()


@click.command()
@click.option("--namespace", required=True, help="Namespace of the operator.")
@click.option("--lease", required=True, help="Name of its Lease.")
@click.option("--recipes-of", help="Namespace whose recipes it serves; default all.")
def main(namespace: str, lease: str, recipes_of: str | None) -> None:
    """Check that an operator leads, with the rights of its service account."""
    try:
        holder = asyncio.run(_run(namespace, lease, recipes_of))
    except (NoLeaderError, *EXPECTED_ERRORS) as error:
        click.echo(f"error: {described(error)}", err=True)
        sys.exit(1)
    click.echo(f"{holder} leads, and recipes can be read")


if __name__ == "__main__":
    main()
