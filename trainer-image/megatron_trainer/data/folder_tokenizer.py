"""The tokenizer that a folder of text is prepared with, and whether the model has its token ids."""

from typing import Any

from megatron_contract.exit_codes import ExitCode

from megatron_trainer.data.preparation_error import PreparationError
from megatron_trainer.data.prepare_options import PrepareOptions


def load_tokenizer(options: PrepareOptions) -> tuple[Any, int | None]:
    """Return the tokenizer, and the id that ends documents; None for none.

    Raises PreparationError for one that has no such id, or more ids than the model.
    """
    from megatron_trainer.data import tokenizer

    folder = options.tokenizer_dir
    try:
        loaded, eod = tokenizer.load(folder)
    except tokenizer.TokenizerError as error:
        raise PreparationError(ExitCode.BAD_DATA, str(error)) from error
    if options.append_eod and eod is None:
        problem = f"the tokenizer in {folder} has no eos_token"
        fix = "set one in its tokenizer_config.json, or set false"
        raise PreparationError(ExitCode.BAD_DATA, f"data.prepare.appendEod (--append-eod): {problem}; {fix}")
    # Tokens that were added may be unused.
    ids = max(loaded.get_vocab(with_added_tokens=False).values(), default=0) + 1
    if options.vocab_size is not None and ids > options.vocab_size:
        problem = f"the tokenizer in {folder} has {ids:,} token ids, and the model {options.vocab_size:,}"
        if options.tokenizer_vocab_size is None:
            field, fix = "data.tokenizer.tokenizerModel", f"set model.vocabSize: {ids}"
        else:
            field = "data.prepare.tokenizerVocabSize (--tokenizer-vocab-size)"
            fix = f"it is there already, maybe for other recipes: set {ids}, and model.vocabSize if it is set"
        raise PreparationError(
            ExitCode.BAD_DATA, f"{field}: {problem}; {fix}, or name another tokenizer in data.tokenizer"
        )
    return loaded, eod if options.append_eod else None
