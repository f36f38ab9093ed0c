"""JSON of the API server, however deeply somebody has nested it.

Python's decoder raises RecursionError above some 1,500 levels (3.12), and orjson has an error above 1,024;
the API server stores 10,000, in fields without a schema and in `metadata.managedFields`. One such object
would end every watch and list that has it.
"""

import contextlib
import json
import re
from typing import Any, Final

import orjson

DEEPEST: Final = 100
"""Levels that are kept: no object of Kubernetes has half as many."""
_TOKEN: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{}]', re.DOTALL)
"""A string, or a bracket outside strings."""


class ShallowDecoder(json.JSONDecoder):
    """Decodes what the standard decoder cannot for its depth, with null for what is deeper than DEEPEST.

    With orjson where that can: the operator of a fleet spends much of its time on decoding.
    """

    def decode(self, s: str, *arguments: Any) -> Any:
        """As JSONDecoder.decode, without RecursionError."""
        with contextlib.suppress(orjson.JSONDecodeError):
            return orjson.loads(s)
        try:
            return super().decode(s, *arguments)
        except RecursionError:
            return super().decode(without_deep_parts(s), *arguments)


def loads(text: str | bytes) -> Any:
    """As json.loads, without RecursionError."""
    with contextlib.suppress(orjson.JSONDecodeError):
        return orjson.loads(text)
    return json.loads(text, cls=ShallowDecoder)


def make_default() -> None:
    """Let json.loads decode so in the whole process: kopf and aiohttp take no decoder."""
    json._default_decoder = ShallowDecoder()  # type: ignore[attr-defined]


def without_deep_parts(text: str) -> str:
    """The JSON text with null in place of every list and object deeper than DEEPEST."""
    kept, depth, end = [], 0, 0
    for token in _TOKEN.finditer(text):
        bracket = token.group()
        if bracket in ("[", "{"):
            if depth == DEEPEST:
                kept += [text[end : token.start()], "null"]
            depth += 1
        elif bracket in ("]", "}"):
            depth -= 1
            if depth == DEEPEST:
                end = token.end()
    return "".join([*kept, text[end:]])
