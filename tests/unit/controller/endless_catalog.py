"""A catalog with recipes whose planning never ends, takes all memory, or ends the process that plans."""

import os
import signal

from megatron_operator.catalog.catalog import DATA_DIR, Catalog
from megatron_operator.catalog.entry import Entry
from megatron_operator.catalog.loader import scan


class EndlessCatalog(Catalog):
    """The operator's own catalog, and the recipes `endless`, `greedy` and `killed`."""

    def __init__(self) -> None:
        super().__init__(scan(DATA_DIR))

    def get(self, name: str) -> Entry:
        if name == "endless":
            sum(range(10**15))
        if name == "greedy":
            bytearray(2**34)
        if name == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().get(name)
