"""Prints the mean loss of the answers in a file of chats for each folder given, as JSON.

Runs in a pod with the trainer's image; model, tokenizer and chat template are loaded by transformers.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def loss(folder: str, chats: Path) -> float:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    total, count = 0.0, 0
    for line in chats.read_text().splitlines():
        found = tokenizer.apply_chat_template(
            json.loads(line)["messages"], tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        ids, counted = torch.tensor([found["input_ids"]]), torch.tensor([found["assistant_masks"]])
        with torch.no_grad():
            mean = model(ids, labels=ids.masked_fill(counted == 0, -100)).loss
        answers = int(counted[:, 1:].sum())
        total, count = total + float(mean) * answers, count + answers
    return total / count


if __name__ == "__main__":
    (chats,) = Path(sys.argv[1]).parent.glob(Path(sys.argv[1]).name)
    print(json.dumps({folder: loss(folder, chats / "validation.jsonl") for folder in sys.argv[2:]}))
