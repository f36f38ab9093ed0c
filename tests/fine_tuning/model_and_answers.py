"""Writes what is trained: a Llama and a Qwen3 with experts, of two layers, and questions, chats and texts.

Runs in a pod with the trainer's image. Argument: a folder, which gets model/, experts/, answers/, texts/,
chats/ and, with the same content, same-chats/.
"""

import json
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

VOCABULARY = 512
SOURCES = Path("/usr/lib/python3.13")
CHATS_OF_A_FILE, FILES_OF_CHATS = 1000, 16
TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}"
    "{% generation %} {{ m['content'] }}<|end_of_text|>{% endgeneration %}"
    "{% else %}{{ m['content'] }}{% endif %}{% endfor %}"
)


def main(folder: Path) -> None:
    functions = [
        line.strip()
        for path in sorted(SOURCES.glob("*.py"))
        for line in path.read_text(errors="replace").splitlines()
        if line.strip().startswith("def ")
    ][:2000]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|begin_of_text|>", "<|end_of_text|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(functions, trainer)

    model = folder / "model"
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=special[0], eos_token=special[1], pad_token=special[1]
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(model)
    torch.manual_seed(1)
    config = LlamaConfig(
        num_hidden_layers=2,
        hidden_size=64,
        intermediate_size=128,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=VOCABULARY,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(model)

    fast.save_pretrained(folder / "experts")
    write_experts(folder / "experts")

    answers = folder / "answers"
    answers.mkdir()
    samples = [
        {"input": "What is the name of this function? " + line, "output": line[4:].split("(")[0]}
        for line in functions
    ]
    for name, part in (("training", samples[:-100]), ("validation", samples[-100:])):
        text = "".join(json.dumps(sample) + "\n" for sample in part)
        (answers / f"{name}.jsonl").write_text(text)

    texts = folder / "texts"
    texts.mkdir()
    for name, key in (("questions", "input"), ("names", "output")):
        text = "".join(json.dumps({"text": sample[key]}) + "\n" for sample in samples)
        (texts / f"{name}.jsonl").write_text(text)

    # A folder for each run: runs share what was prepared of the same files.
    for name in ("chats", "same-chats"):
        write_chats(folder / name, samples)


def write_experts(folder: Path) -> None:
    """A Qwen3 with four experts in each of two layers."""
    config = Qwen3MoeConfig(
        num_hidden_layers=2,
        hidden_size=64,
        intermediate_size=128,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=VOCABULARY,
        max_position_embeddings=128,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        norm_topk_prob=True,
        rope_theta=1000000,
        tie_word_embeddings=False,
    )
    Qwen3MoeForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def write_chats(folder: Path, samples: list[dict[str, str]]) -> None:
    """Files of chats in OpenAI's form; the questions are numbered, so that no chat is there twice."""
    folder.mkdir()
    for file in range(FILES_OF_CHATS):
        numbers = range(file * CHATS_OF_A_FILE, (file + 1) * CHATS_OF_A_FILE)
        text = "".join(json.dumps(chat(number, samples[number % len(samples)])) + "\n" for number in numbers)
        (folder / f"{file:02}.jsonl").write_text(text)


def chat(number: int, sample: dict[str, str]) -> dict[str, object]:
    """A question and its answer as a conversation."""
    turns = (("user", f"{number}. {sample['input']}"), ("assistant", sample["output"]))
    return {"messages": [{"role": role, "content": text} for role, text in turns]}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
