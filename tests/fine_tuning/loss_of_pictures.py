"""Prints the loss of the colours of pictures that no run saw, by transformers, for each model's folder given.

Runs in a pod with the trainer's image, beside image_text.py.
"""

import importlib
import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForImageTextToText, AutoProcessor

SEEN, COUNT = 400, 20
PIXELS = {"min_pixels": 200704, "max_pixels": 1003520}
"""Those of Megatron-Bridge's collator."""


def loss(folder: str) -> float:
    """Mean over the tokens of all answers, in nats."""
    sys.path.insert(0, str(Path(__file__).parent))
    image_text = importlib.import_module("image_text")
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    processor = AutoProcessor.from_pretrained(folder)
    losses = []
    for record, _, picture in list(image_text.pictures(SEEN + COUNT))[SEEN:]:
        turns = record.get("messages") or record["conversations"]
        question, answer = (turn.get("content") or turn["value"] for turn in turns)
        parts = [{"type": "image"}, {"type": "text", "text": question.removeprefix("<image>")}]
        messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": answer}]
        text = processor.apply_chat_template(messages, tokenize=False)
        inputs = processor(text=[text], images=[picture], return_tensors="pt", **PIXELS)
        count = len(processor.tokenizer(f"{answer}<|im_end|>\n")["input_ids"])
        with torch.no_grad():
            logits = model(**inputs).logits[0, -count - 1 : -1]
        found = torch.nn.functional.cross_entropy(logits, inputs["input_ids"][0, -count:], reduction="none")
        losses += found.tolist()
    return sum(losses) / len(losses)


if __name__ == "__main__":
    print(json.dumps({folder: loss(folder) for folder in sys.argv[1:]}))
