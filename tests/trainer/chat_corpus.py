"""Chats, and a tokenizer of bytes with a chat template."""

import json
from pathlib import Path
from typing import Any

LLAMA = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m['role'] not in ['system', 'user', 'assistant'] %}{{ raise_exception('no role ' + m['role']) }}"
    "{% endif %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n{{ m['content'] | trim }}<|eot_id|>"
    "{% endfor %}"
)
"""Llama 3's template, which marks answers by its markers alone."""
GENERATION = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}[A]{% generation %}{{ m['content'] }}<|eot_id|>"
    "{% endgeneration %}{% elif m['role'] in ['system', 'user'] %}[{{ m['role'] }}]{{ m['content'] }}"
    "{% endif %}{% endfor %}"
)
"""A template that marks answers itself, and leaves out messages of other roles."""
GPT_OSS = """
{%- for m in messages %}
  {%- if m.role == "assistant" and m.tool_calls %}
    {%- set final = namespace(follows=false) %}
    {%- for later in messages[loop.index:] if later.role == "assistant" and not later.tool_calls %}
      {%- set final.follows = true %}
    {%- endfor %}
    {%- if m.thinking and not final.follows %}
      {{- "<|start|>assistant<|channel|>analysis<|message|>" + m.thinking + "<|end|>" }}
    {%- endif %}
    {{- "<|start|>assistant to=functions." + m.tool_calls[0].function.name + "<|channel|>commentary json" }}
    {{- "<|message|>" + m.tool_calls[0].function.arguments | tojson + "<|call|>" }}
  {%- elif m.role == "assistant" %}
    {%- if loop.last and m.thinking %}
      {{- "<|start|>assistant<|channel|>analysis<|message|>" + m.thinking + "<|end|>" }}
    {%- endif %}
    {{- "<|start|>assistant<|channel|>final<|message|>" + m.content }}
    {{- "<|return|>" if loop.last else "<|end|>" }}
  {%- elif m.role == "tool" %}
    {{- "<|start|>functions.f to=assistant<|channel|>commentary<|message|>" + m.content + "<|end|>" }}
  {%- else %}
    {{- "<|start|>" + m.role + "<|message|>" + m.content + "<|end|>" }}
  {%- endif %}
{%- endfor %}"""
"""After the template of openai/gpt-oss-20b: reasoning of the last turn alone, which ends otherwise."""
END = "<|eot_id|>"


def write_tokenizer(folder: Path, template: str | None) -> Path:
    """Write a tokenizer whose tokens are the bytes of text, and four special ones: fewer than 256."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    # The alphabet has control characters, other than the line feed, at 256 to 287.
    alphabet = [word for word in pre_tokenizers.ByteLevel.alphabet() if not 256 <= ord(word) < 288]
    vocabulary = {word: index for index, word in enumerate(sorted([*alphabet, chr(256 + ord("\n"))]))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|begin_of_text|>",
        eos_token=END,
        additional_special_tokens=["<|start_header_id|>", "<|end_header_id|>"],
    )
    fast.chat_template = template
    fast.save_pretrained(folder)
    return folder


def openai(*texts: str, system: str | None = None) -> dict[str, Any]:
    """A chat in which user and assistant take turns."""
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]
    return {"messages": [*([{"role": "system", "content": system}] if system else []), *messages]}


def sharegpt(*texts: str, system: str | None = None) -> dict[str, Any]:
    """The same in the form of ShareGPT."""
    turns = [{"from": ("human", "gpt")[n % 2], "value": text} for n, text in enumerate(texts)]
    return {"conversations": turns} | ({"system": system} if system else {})


def lines(chats: list[dict[str, Any]]) -> str:
    """Chats as lines of JSON."""
    return "".join(f"{json.dumps(chat)}\n" for chat in chats)


def many(count: int) -> list[dict[str, Any]]:
    """Chats of one, two and three turns in both forms, all different."""
    found = []
    for number in range(count):
        texts = [
            text
            for turn in range(number % 3 + 1)
            for text in (f"what is {number}+{turn}?", f"{number + turn}, größer")
        ]
        form = openai if number % 2 else sharegpt
        found.append(form(*texts, system="be brief" if number % 5 == 0 else None))
    return found


def answers(chat: dict[str, Any]) -> list[str]:
    """What the assistant writes in a chat of either form."""
    if "messages" in chat:
        return [each["content"] for each in chat["messages"] if each["role"] == "assistant"]
    return [each["value"] for each in chat["conversations"] if each["from"] == "gpt"]
