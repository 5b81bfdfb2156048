from __future__ import annotations

import pytest
import torch
from helpers.examples import questions_folder
from torch import nn

from superformer.errors import SuperformerError
from superformer.transfer.answers import AnswerSettings, Soho, positions
from superformer.transfer.examples import ExampleSettings, load
from superformer.transfer.metrics import score
from superformer.transfer.task import Batch

TINY = AnswerSettings(hidden=32, layers=2, heads=2, matching=1)


class Patches(nn.Module):
    """Two stages: a convolution of patches, and one of their pairs."""

    channels = (12, 16)

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 12, 4, 4), nn.Conv2d(12, 16, 2, 2)

    def forward(self, x):
        first = self.first(x)
        return [first, self.last(first.relu())]


def made(settings=TINY, answers=3, vocabulary=10):
    torch.manual_seed(0)
    return Soho(Patches(), answers, vocabulary, settings)


def target(*words, **more):
    return {"question": torch.tensor(words), "answer": 1} | more


FOUR = {
    "matched": torch.tensor([[2, 7, 3, 0]]),
    "matched_answers": torch.tensor([2]),
    "unmatched": torch.tensor([[2, 8, 3, 0], [2, 9, 3, 0]]),
}


def test_a_question_is_answered_whatever_its_padding_and_its_company():
    model = made().eval().requires_grad_(False)
    for weight in model.bert.encoder.parameters():
        weight.mul_(5)  # attention that new weights hardly have
    pictures = list(torch.randn(2, 3, 16, 16))
    both = model.predict(pictures, [target(2, 5, 3, 0, 0), target(2, 5, 6, 7, 3)])
    alone = model.predict(pictures[:1], [target(2, 5, 3)])
    assert torch.allclose(both[0]["scores"], alone[0]["scores"], atol=1e-5)
    assert both[0]["scores"].shape == (3,)
    assert float(both[0]["scores"].sum()) == pytest.approx(1, abs=1e-5)
    other_question = model.predict(pictures[:1], [target(2, 6, 3)])
    other_picture = model.predict(pictures[1:], [target(2, 5, 3)])
    for other in (other_question, other_picture):
        assert not torch.allclose(other[0]["scores"], alone[0]["scores"], atol=1e-5)


def test_the_loss_is_of_two_answers_and_four_texts():
    model = made()
    picture = torch.randn(3, 16, 16)
    losses = model.losses(Batch([picture], [target(2, 5, 3, 0, **FOUR)]))
    assert set(losses) == {"answer", "matching"}
    seen = model._seen([picture])
    texts = torch.tensor([[2, 5, 3, 0], [2, 7, 3, 0], [2, 8, 3, 0], [2, 9, 3, 0]])
    read = torch.cat([model.read(seen, text[None]) for text in texts])
    answers = nn.functional.cross_entropy(model.answer(read[:2]), torch.tensor([1, 2]))
    assert torch.allclose(losses["answer"], answers, atol=1e-5)
    matching = model.match(read)[:, 0]
    expected = nn.functional.binary_cross_entropy_with_logits(matching, torch.tensor([1.0, 1, 0, 0]))
    assert torch.allclose(losses["matching"], expected, atol=1e-5)
    without = made(TINY.model_copy(update={"matching": 0.0}))
    assert set(without.losses(Batch([picture], [target(2, 5, 3, 0, **FOUR)]))) == {"answer"}


def test_every_parameter_that_is_used_learns():
    model = made()
    sum(model.losses(Batch([torch.randn(3, 16, 16)], [target(2, 5, 3, 0, **FOUR)])).values()).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


def test_answers_of_several_people_have_a_binary_loss():
    model = made()
    credit = {"credit": torch.tensor([0.0, 1, 0.3]), "matched_credits": torch.tensor([[1.0, 0, 0]])}
    losses = model.losses(Batch([torch.randn(3, 16, 16)], [target(2, 5, 3, 0, **FOUR, **credit)]))
    assert float(losses["answer"]) == pytest.approx(3 * 0.69, rel=0.5)


def test_where_it_looked():
    model = made().eval()
    looked = model.where(torch.randn(3, 24, 16), torch.tensor([2, 5, 3, 0, 0]))
    assert looked.shape == (3, 2)
    assert float(looked.sum()) == pytest.approx(1, abs=1e-5)
    assert (looked > 0).all()
    first = made(AnswerSettings(hidden=32, layers=1, heads=2, level=0)).eval()
    assert first.where(torch.randn(3, 24, 16), torch.tensor([2, 5, 3])).shape == (6, 4)


def test_the_last_stage_of_a_plain_transformer_is_not_the_pooled_one():
    backbone = Patches()
    backbone.strides, backbone.step = (8, 4), 8
    assert Soho(backbone, 2, 9, TINY).project.in_features == 12
    backbone.strides, backbone.step = (4, 8), 8
    assert Soho(backbone, 2, 9, TINY).project.in_features == 16


def test_positions_differ_everywhere():
    where = positions(5, 7, 32)
    assert where.shape == (35, 32)
    assert (torch.cdist(where, where) + torch.eye(35)).min() > 0.1


def test_it_learns_tiny_questions(tmp_path):
    settings = ExampleSettings(size=24, choice=0, texts=2)
    data = load("vqa", str(questions_folder(tmp_path)), settings)
    model = made(TINY, len(data.classes), len(data.about["vocabulary"]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(60):
        examples = [data.train.example(k, (0, step, k)) for k in range(step % 2, len(data.train), 2)]
        losses = model.losses(Batch([e.picture for e in examples], [e.target for e in examples]))
        optimizer.zero_grad()
        sum(losses.values()).backward()
        optimizer.step()
    model.eval()
    examples = [data.train.example(k) for k in range(len(data.train))]
    with torch.inference_mode():
        found = model.predict([e.picture for e in examples], [e.target for e in examples])
    assert score("vqa", data, "train", found)["metrics"]["accuracy"] >= 0.9


def test_weights_of_bert(tmp_path):
    from transformers import BertConfig, BertModel

    config = BertConfig(vocab_size=10, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    bert = BertModel(config)
    bert.save_pretrained(tmp_path)
    model = made(AnswerSettings(bert=str(tmp_path)))
    assert torch.equal(model.bert.embeddings.word_embeddings.weight, bert.embeddings.word_embeddings.weight)
    assert model.project.out_features == 16
    with pytest.raises(SuperformerError, match="knows 10 pieces, the questions have 12"):
        made(AnswerSettings(bert=str(tmp_path)), vocabulary=12)
    with pytest.raises(SuperformerError, match="BERT cannot be read from"):
        made(AnswerSettings(bert=str(tmp_path / "nowhere")))


def test_heads_share_the_channels():
    with pytest.raises(SuperformerError, match="32 channels cannot be shared by 3 heads"):
        made(AnswerSettings(hidden=32, heads=3))
