"""A small byte-pair tokenizer, trained on the text that an environment makes; no model hub is needed.

In: texts. Out: a tokenizer in the Hugging Face layout that transformers and vLLM load. Digits are always tokens of their own, so
that arithmetic has one spelling; the request for a length is a long fixed phrase and shrinks to a few tokens. All 256
bytes are in the vocabulary, so that any text at all has tokens. Called by `generated_model`.
"""

from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

END, PADDING = "<|end|>", "<|padding|>"
MAX_VOCABULARY = 384
"""Room for 256 bytes, two special tokens and the merges of one phrase; the head of a tiny model should stay tiny."""


def train_tokenizer(texts: Iterable[str], vocabulary: int = MAX_VOCABULARY) -> PreTrainedTokenizerFast:
    """The tokenizer for these texts, with at most `vocabulary` tokens; the same texts give the same tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            # No split at spaces: the whole phrase between two digits may become one token.
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END, PADDING],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PADDING, clean_up_tokenization_spaces=False
    )
