"""Values of Secrets are removed from texts that leave the pod: its termination message, status and Events.

MEGATRON_SECRET_VARIABLES names the variables that have them. For the keys of a whole Secret, whose names the
operator does not know, it is `*` with the names that are known, as `-NAME`.
"""

import os
from collections.abc import Mapping, MutableMapping
from typing import Final
from urllib.parse import quote

from megatron_contract.environment import ENV_SECRET_VARIABLES

REPLACEMENT: Final = "<value of a Secret>"
SHORTEST: Final = 6
"""Characters: a shorter value would take ordinary words from a text, and could be guessed from the rest."""
OF_THE_RUNTIME: Final = frozenset({"HOSTNAME", "HOME", "LANG", "LC_ALL", "PATH", "PWD", "SHLVL", "TERM"})
"""Variables that container runtimes and shells set."""


def name_secret_variables(environment: MutableMapping[str, str] = os.environ) -> None:
    """Replace `*` by the names that it stands for; to be called before anything else sets variables."""
    words = environment.get(ENV_SECRET_VARIABLES, "").split()
    if "*" in words:
        known = {word[1:] for word in words if word.startswith("-")} | OF_THE_RUNTIME | {ENV_SECRET_VARIABLES}
        environment[ENV_SECRET_VARIABLES] = " ".join(sorted(environment.keys() - known))


def scrub(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """Replace the values of Secrets in a text, also where they are quoted or their spaces were changed."""
    forms: set[str] = set()
    for name in environment.get(ENV_SECRET_VARIABLES, "").split():
        value = environment.get(name, "")
        for part in (value, value.strip(), " ".join(value.split()), *value.splitlines()):
            forms |= {part, part.strip(), repr(part)[1:-1], quote(part, safe="")}
    for form in sorted(forms, key=len, reverse=True):
        if len(form) >= SHORTEST:
            text = text.replace(form, REPLACEMENT)
    return text
