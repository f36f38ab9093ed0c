"""Prints the mean loss of the answers of validation.jsonl for each folder given, as JSON.

Runs in a pod with the trainer's image; the model is loaded by transformers.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def loss(folder: str, answers: Path) -> float:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    sums, count = 0.0, 0
    for line in answers.read_text().splitlines():
        sample = json.loads(line)
        question = tokenizer(sample["input"], add_special_tokens=False)["input_ids"]
        answer = tokenizer(" " + sample["output"], add_special_tokens=False)["input_ids"]
        ids = torch.tensor([question + answer])
        labels = torch.tensor([[-100] * len(question) + answer])
        with torch.no_grad():
            sums += float(model(ids, labels=labels).loss) * len(answer)
        count += len(answer)
    return sums / count


if __name__ == "__main__":
    print(json.dumps({folder: loss(folder, Path(sys.argv[1])) for folder in sys.argv[2:]}))
