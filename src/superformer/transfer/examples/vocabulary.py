"""Questions as numbers: BERT's word pieces if a vocabulary is given, else the words of the training questions."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from superformer.errors import SuperformerError

PAD, UNKNOWN, CLS, SEP = "[PAD]", "[UNK]", "[CLS]", "[SEP]"
SPECIAL = (PAD, UNKNOWN, CLS, SEP)
OFTEN = 2
"""How often a word must be asked to be one; rarer ones teach the network what an unknown word is."""


def words(text: str) -> list[str]:
    """Words and signs in lower case without accents, as BERT's uncased tokenizer separates them."""
    plain = "".join(c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn")
    return re.findall(r"[^\W_]+|[^\w\s]|_", plain)


@dataclass(frozen=True)
class Vocabulary:
    """Words, or pieces of words, by number; the first is `PAD`."""

    words: tuple[str, ...]

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {word: k for k, word in enumerate(self.words)}

    def encode(self, text: str, length: int) -> Tensor:
        """``[CLS] a question [SEP]`` as int64 (length,), cut if it is longer and padded with 0 if it is shorter."""
        numbers = [k for word in words(text) for k in self._pieces(word)][: length - 2]
        numbers = [self._numbers[CLS], *numbers, self._numbers[SEP]]
        return torch.tensor(numbers + [0] * (length - len(numbers)), dtype=torch.int64)

    def _pieces(self, word: str) -> list[int]:
        """WordPiece: always the longest piece that is known; pieces that go on begin with ##."""
        out, start = [], 0
        while start < len(word):
            ends = range(len(word), start, -1)
            tried = ((end, self._numbers.get(("##" if start else "") + word[start:end])) for end in ends)
            end, number = next(((e, n) for e, n in tried if n is not None), (0, None))
            if number is None:
                return [self._numbers[UNKNOWN]]
            out.append(number)
            start = end
        return out


def of_questions(texts: Iterable[str]) -> Vocabulary:
    """The words that questions have, the most common first."""
    counts = Counter(word for text in texts for word in words(text))
    often = sorted((w for w, n in counts.items() if n >= OFTEN), key=lambda w: (-counts[w], w))
    return Vocabulary((*SPECIAL, *often))


def of_file(path: Path) -> Vocabulary:
    """A vocab.txt of BERT: a piece a line."""
    try:
        found = tuple(path.read_text("utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as problem:
        raise SuperformerError(f"data.vocabulary {path} cannot be read ({problem}): give BERT's vocab.txt") from problem
    missing = [word for word in SPECIAL if word not in found]
    if missing or found[0] != PAD:
        told = f"has no {', '.join(missing)}" if missing else f"begins with {found[0]!r}, not with {PAD}"
        raise SuperformerError(f"data.vocabulary {path} {told}: give BERT's vocab.txt, a piece a line")
    return Vocabulary(found)
