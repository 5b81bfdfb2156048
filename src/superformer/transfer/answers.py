"""Question answering after SOHO (Huang et al., 2021) without its visual dictionary, as S3 has it (section 4.4 and
appendix C): the tokens of the backbone's last stage and those of a question go through one cross-modal transformer,
BERT; the answer is read at [CLS], as one of the classes.

"An image is paired with four texts per batch, including two matched pairs and two unmatched pairs": both matched
questions are answered, and of all four the network says whether they belong to the picture (SOHO's image-text
matching). S3 does not say what an unmatched text is in question answering; here it is a question of another picture
that nobody asked about this one. Positions of picture tokens are sines in two dimensions, as in SOHO."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from superformer.errors import SuperformerError
from superformer.settings import SettingsBase
from superformer.transfer.backbone import Backbone
from superformer.transfer.task import Batch, Prediction, Target

PAD, PICTURE_TYPE = 0, 1
LONGEST_QUESTION = 512


class AnswerSettings(SettingsBase):
    """The cross-modal transformer; what is not given learns small sets in minutes (docs/transfer-data.md). S3
    has BERT-base's 768 channels, 12 layers and 12 heads, ``matching`` 1 and ``data.texts`` 2."""

    hidden: int = Field(128, ge=4, le=8192, multiple_of=4, description="channels of the cross-modal transformer")
    layers: int = Field(2, ge=1, le=96)
    heads: int = Field(4, ge=1, le=128)
    dropout: float = Field(0.0, ge=0, lt=1)
    level: int | None = Field(None, ge=-4, le=3, description="whose tokens are used; none: the network's last stage")
    matching: float = Field(0.0, ge=0, le=1000, description="weight of the matching loss; 0: only matched texts")
    bert: str | None = Field(None, description="a folder with BERT's config.json and model.safetensors to begin from")


class Soho(nn.Module):
    """A backbone and a cross-modal transformer that answers questions.

    ``backbone``: pictures (n, 3, height, width) to a list of maps, of ``channels``. ``vocabulary``: the number of
    words, of which 0 is padding. ``answers``: the number of classes."""

    def __init__(self, backbone: Any, answers: int, vocabulary: int, settings: AnswerSettings | None = None):
        super().__init__()
        self.settings = settings or AnswerSettings()
        self.backbone = backbone
        self.bert = _bert(self.settings, vocabulary)
        hidden = int(self.bert.config.hidden_size)
        self.level = last_level(backbone) if self.settings.level is None else self.settings.level
        if isinstance(backbone, Backbone):
            backbone.only([self.level])
        self.project = nn.Linear(backbone.channels[self.level], hidden)
        self.norm = nn.LayerNorm(hidden)
        self.dropout = nn.Dropout(self.settings.dropout)
        self.answer = nn.Sequential(
            nn.Linear(hidden, 2 * hidden), nn.GELU(), nn.LayerNorm(2 * hidden), nn.Linear(2 * hidden, answers)
        )
        self.match = nn.Linear(hidden, 1) if self.settings.matching else None

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy of the answers (with answers of several people, binary, as in SOHO) and of matching."""
        seen = self._seen(batch.pictures)
        matching = self.settings.matching
        matched, unmatched = _texts(batch.targets, matching > 0)
        texts = torch.cat([matched, unmatched], 1).to(seen.device)  # (pictures, texts, words)
        n, each, length = texts.shape
        words = _without_padding(texts.view(n * each, length))
        read = self.read(seen.repeat_interleave(each, 0), words).view(n, each, -1)
        out = {"answer": _answer_loss(self.answer(read[:, : matched.shape[1]]), batch.targets)}
        if self.match is not None and unmatched.shape[1]:
            truth = torch.zeros(n, each, device=seen.device)
            truth[:, : matched.shape[1]] = 1
            out["matching"] = matching * F.binary_cross_entropy_with_logits(self.match(read)[..., 0], truth)
        return out

    def forward(self, x: Tensor, questions: Tensor) -> Tensor:
        """Logits of the answers (n, answers) to questions (n, words), which may be padded, about as many pictures."""
        answers: Tensor = self.answer(self.read(self.projected(self.backbone(x)[self.level]), questions))
        return answers

    def predict(self, pictures: Sequence[Tensor], targets: Sequence[Target]) -> list[Prediction]:
        """``scores``: the probability of each answer."""
        seen = self._seen(pictures)
        questions = torch.stack([target["question"] for target in targets]).to(seen.device)
        scores = self.answer(self.read(seen, _without_padding(questions))).softmax(-1)
        return [{"scores": row} for row in scores]

    def where(self, picture: Tensor, question: Tensor) -> Tensor:
        """How much [CLS] attends to each place of the picture in the last layer, mean of the heads, (rows, columns)."""
        maps = self._maps([picture])
        words = _without_padding(question[None].to(maps.device))
        tokens, mask = self._tokens(self.projected(maps), words)
        for layer in self.bert.encoder.layer[:-1]:
            tokens = layer(tokens, mask)
        last = self.bert.encoder.layer[-1].attention.self
        q, k = (f(tokens).unflatten(-1, (last.num_attention_heads, -1)) for f in (last.query, last.key))
        weights = (torch.einsum("nhc,nthc->nht", q[:, 0], k) * last.scaling).masked_fill(~mask[:, 0], -math.inf)
        looked: Tensor = weights.softmax(-1).mean(1)[0, words.shape[1] :]  # the picture's share
        return looked.view(maps.shape[-2:]) / looked.sum()

    def _maps(self, pictures: Sequence[Tensor]) -> Tensor:
        if len({p.shape for p in pictures}) > 1:
            raise SuperformerError("pictures of questions differ in size: they must be squares of data.size")
        place = next(self.project.parameters()).device
        maps: Tensor = self.backbone(torch.stack(list(pictures)).to(place))[self.level]
        return maps  # (n, channels, rows, columns)

    def _seen(self, pictures: Sequence[Tensor]) -> Tensor:
        return self.projected(self._maps(pictures))

    def projected(self, maps: Tensor) -> Tensor:
        """Tokens of the picture, (n, rows x columns, hidden)."""
        tokens: Tensor = self.project(maps.flatten(2).transpose(1, 2))
        kind = self.bert.embeddings.token_type_embeddings.weight[PICTURE_TYPE]
        where = positions(maps.shape[-2], maps.shape[-1], tokens.shape[-1]).to(tokens)
        return self.dropout(self.norm(tokens + kind + where))  # type: ignore[no-any-return]

    def _tokens(self, seen: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        """All tokens, the words first, and which of them may be attended to (n, 1, 1, tokens)."""
        tokens = torch.cat([self.bert.embeddings(input_ids=words), seen], 1)
        real = torch.cat([words != PAD, torch.ones(seen.shape[:2], dtype=torch.bool, device=seen.device)], 1)
        return tokens, real[:, None, None]

    def read(self, seen: Tensor, words: Tensor) -> Tensor:
        """What stands at [CLS], (n, hidden), of tokens of pictures (n, places, hidden) and words (n, words)."""
        tokens, mask = self._tokens(seen, words)
        for layer in self.bert.encoder.layer:
            tokens = layer(tokens, mask)
        return tokens[:, 0]


def _without_padding(questions: Tensor) -> Tensor:
    """Questions (n, tokens) as long as the longest of them."""
    return questions[:, : max(int((questions != PAD).sum(1).max()), 1)]


def last_level(backbone: Any) -> int:
    """The level that is the network's own last map: of a plain transformer at stride 16 not the pooled one."""
    own, strides = getattr(backbone, "step", None), getattr(backbone, "strides", ())
    if own is None or not strides:
        return -1
    return min(range(len(strides)), key=lambda k: (abs(math.log2(strides[k] / own)), -k))


def _texts(targets: Sequence[Target], others: bool) -> tuple[Tensor, Tensor]:
    """The questions of each picture, the asked one first, and in training those of other pictures, if they are wanted,
    each (pictures, texts, words)."""
    asked = torch.stack([target["question"] for target in targets])[:, None]
    if "matched" not in targets[0]:
        return asked, asked[:, :0]
    matched = torch.cat([asked, torch.stack([target["matched"] for target in targets])], 1)
    return matched, torch.stack([target["unmatched"] for target in targets]) if others else asked[:, :0]


def _answer_loss(logits: Tensor, targets: Sequence[Target]) -> Tensor:
    """Of (pictures, matched texts, answers)."""
    both = "matched" in targets[0]
    if "credit" in targets[0]:
        worth = torch.stack([t["credit"] for t in targets])[:, None]
        worth = torch.cat([worth, torch.stack([t["matched_credits"] for t in targets])], 1) if both else worth
        return F.binary_cross_entropy_with_logits(logits, worth.to(logits)) * logits.shape[-1]
    wanted = torch.tensor([[t["answer"]] for t in targets], device=logits.device)
    if both:
        wanted = torch.cat([wanted, torch.stack([t["matched_answers"] for t in targets]).to(wanted)], 1)
    return F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=-1)


def positions(rows: int, columns: int, channels: int) -> Tensor:
    """Sines and cosines of row and column, half of the channels each, (rows x columns, channels)."""
    quarter = channels // 4
    rates = 10_000 ** (-torch.arange(quarter, dtype=torch.float32) / quarter)
    along = [torch.arange(n, dtype=torch.float32)[:, None] * rates for n in (rows, columns)]
    y, x = (torch.cat([a.sin(), a.cos()], -1) for a in along)  # (n, channels / 2)
    grid = torch.cat([y[:, None].expand(-1, columns, -1), x[None].expand(rows, -1, -1)], -1)
    return F.pad(grid.flatten(0, 1), (0, channels - 4 * quarter))


def _bert(settings: AnswerSettings, vocabulary: int) -> Any:
    """BERT without its pooling: new, or with the weights of a folder, which then tells its sizes."""
    try:
        from transformers import BertConfig, BertModel
    except ImportError as problem:
        advice = "pip install 'superformer[transfer]'"
        raise SuperformerError(f"question answering needs transformers, which is not installed: {advice}") from problem
    if settings.bert is None:
        if settings.hidden % settings.heads:
            given = f"{settings.hidden} channels cannot be shared by {settings.heads} heads"
            raise SuperformerError(f"{given}: make hidden a multiple of heads")
        config = BertConfig(
            vocab_size=vocabulary, hidden_size=settings.hidden, num_hidden_layers=settings.layers,
            num_attention_heads=settings.heads, intermediate_size=4 * settings.hidden, pad_token_id=PAD,
            hidden_dropout_prob=settings.dropout, attention_probs_dropout_prob=settings.dropout,
            max_position_embeddings=LONGEST_QUESTION, attn_implementation="sdpa",
        )  # fmt: skip
        return BertModel(config, add_pooling_layer=False)
    folder = Path(settings.bert).expanduser()
    try:
        found = BertModel.from_pretrained(
            folder, add_pooling_layer=False, local_files_only=True, use_safetensors=True, attn_implementation="sdpa"
        )
    except (OSError, ValueError) as problem:
        told = f"BERT cannot be read from {folder} ({str(problem).splitlines()[0]})"
        raise SuperformerError(f"{told}: give a folder with config.json and model.safetensors") from problem
    if found.config.vocab_size != vocabulary:
        given = f"BERT of {folder} knows {found.config.vocab_size} pieces, the questions have {vocabulary}"
        raise SuperformerError(f"{given}: set data.vocabulary to its vocab.txt")
    return found
