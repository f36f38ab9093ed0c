"""A small real tokenizer instead of those that recipes expect on the data volume or a hub."""

from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

EOD = "<|endoftext|>"


def write_tokenizers(directory: Path) -> dict[str, str]:
    """Path in the pod, or name on the hub -> local path."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        ["a small text"], trainers.BpeTrainer(vocab_size=300, special_tokens=[EOD], initial_alphabet=alphabet)
    )
    folder = directory / "tokenizer"
    PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=EOD).save_pretrained(folder)
    return dict.fromkeys(("/data/tokenizer", "meta-llama/Meta-Llama-3-8B"), str(folder))
