"""Answers of chats in Harmony, the format of GPT-OSS, that Megatron-Bridge 0.6.2 does not find.

A turn has a segment for each channel, such as the reasoning and the answer. Bridge looks for one segment in
each message, or for the message in what the template makes of the chat up to there. But GPT-OSS's template
ends the last message of a chat otherwise, and leaves out the reasoning of those before it.
"""

import functools
from itertools import groupby
from typing import Any, Final

_ROLE: Final = "assistant"
_ENDS: Final = 3
"""A segment ends at `<|return|>`, `<|end|>` or `<|call|>`; of other formats Bridge knows at most two ends."""


@functools.cache
def install() -> None:
    """Have Bridge count, where it finds no answers, the segments of the assistant in a chat in Harmony."""
    from megatron.bridge.data import conversation_processing

    inner = conversation_processing._assistant_mask_from_boundary_config

    def find(ids: Any, boundaries: Any, **options: Any) -> Any:
        found = inner(ids, boundaries, **options)
        roles, content = options.get("conversation_roles"), options.get("include_content", True)
        if found is None and roles and content and len(_ends(boundaries)) == _ENDS:
            return _mask(list(ids), boundaries, roles)
        return found

    conversation_processing._assistant_mask_from_boundary_config = find


def _ends(boundaries: Any) -> list[list[int]]:
    ends = [boundaries.role_end_tokens[_ROLE], *boundaries.role_end_token_variants.get(_ROLE, [])]
    return [list(each) for each in ends]


def _mask(ids: list[int], boundaries: Any, roles: list[str]) -> Any:
    """A mask of all answers, from behind the role to the token that ends them, in FP32, of shape [tokens].

    None unless there is one for each turn of the assistant.
    """
    import torch
    from megatron.bridge.data.conversation_processing import find_token_span

    mask = torch.zeros(len(ids))
    starts = [list(each) for each in boundaries.role_start_tokens.values()]
    start = list(boundaries.role_start_tokens[_ROLE])
    answers, position = 0, 0
    begin, content = find_token_span(ids, start)
    while begin >= 0:
        following = find_token_span(ids, start, content)
        rest = ids[content : following[0] if following[0] >= 0 else len(ids)]
        found = [find_token_span(rest, end) for end in _ends(boundaries)]
        close, after = min((end for end in found if end[0] >= 0), default=(-1, -1))
        if close < 0 or any(find_token_span(rest[:close], each)[0] >= 0 for each in starts):
            return None
        # The model itself begins the next segment of its turn.
        continues = answers > 0 and begin == position
        answers += not continues
        position = content + after
        mask[begin if continues else content : position] = 1.0
        begin, content = following
    turns = sum(role == _ROLE for role, _ in groupby(roles))
    return mask if answers == turns > 0 else None
