"""The answer to a model for which the catalog has no recipe."""

import difflib

from megatron_operator.api.errors import FieldError
from megatron_operator.catalog import Catalog, unsupported_models


def no_match(model: str | None, mode: str, asked: str | None, catalog: Catalog) -> FieldError:
    """The error, with the reason if the model is known.

    `model` is the name in the catalog's form, `asked` the one that was given.
    """
    like = f" like {asked!r}" if asked is not None else ""
    reason = unsupported_models.why_unsupported(asked or "")
    near = difflib.get_close_matches((model or "").lower(), catalog.names(), n=1) if reason is None else []
    hint = f"did you mean {near[0]}? " if near and mode in catalog.get(near[0]).modes else ""
    return FieldError(
        "--mode" if asked is None else "--model",
        f"the catalog has no {mode} recipe{like}{f': {reason}' if reason else ''}",
        f"{hint}name one of the catalog's {len(catalog)} recipes (megatron recipes list), a family, or a size"
        " such as 8b",
    )
