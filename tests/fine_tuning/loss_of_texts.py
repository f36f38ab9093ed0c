"""Prints the mean loss of the lines of a file for each folder given, as JSON.

Runs in a pod with the trainer's image; the model is loaded by transformers.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def loss(folder: str, texts: Path) -> float:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    total, count = 0.0, 0
    for line in texts.read_text().splitlines()[:200]:
        ids = torch.tensor([tokenizer(json.loads(line)["text"])["input_ids"]])
        with torch.no_grad():
            total += float(model(ids, labels=ids).loss) * (ids.shape[1] - 1)
        count += ids.shape[1] - 1
    return total / count


if __name__ == "__main__":
    print(json.dumps({folder: loss(folder, Path(sys.argv[1])) for folder in sys.argv[2:]}))
