"""Questions about pictures, answers as classes.

A folder with ``questions_train.json`` (``{"questions": [{"image": "a.jpg", "question": "...", "answer": "..."}]}``, or
the list alone) and pictures in ``train/images/``, ``train/`` or beside it, and the same for the test part. VQA 2.0 as
published: ``..._questions.json`` (``image_id``, ``question_id``) and ``..._annotations.json`` with ten people's answers
each; an answer is then worth what VQA's accuracy says (all, if four people gave it). So are ``answers`` of several
texts, where no question has an ``answer``. Or a file ``NAME_train.npz``:
``images`` (uint8, n x height x width x 3), ``questions``, ``question_image`` (the picture of each), ``answers``
(texts, or numbers of ``answer_names``).

The classes are the answers of the training questions, the most common first. Test questions with other answers count,
and cannot be answered."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from superformer.data.augment import generator
from superformer.data.sources import TEST, TRAIN, image_store, open_npz, read_array
from superformer.data.stores import Store, digest
from superformer.errors import SuperformerError, shown
from superformer.transfer.examples import vocabulary
from superformer.transfer.examples.settings import ExampleSettings
from superformer.transfer.examples.sources import (
    Words,
    carve,
    folder_of,
    held_out,
    leave_out,
    named,
    parts,
    pictures_below,
    read_json,
    read_picture,
    sizes,
    where_pictures_are,
)
from superformer.transfer.examples.variation import Draw, Variation
from superformer.transfer.examples.vocabulary import Vocabulary
from superformer.transfer.task import Example, TaskData

FORMS = (
    "a folder with questions_train.json and questions_test.json (or val) and pictures, or with NAME_train.npz and "
    "NAME_test.npz; such a file; or train=FILE,test=FILE"
)
ANSWERED_BY = 3
"""People who must give an answer for it to be all right (VQA's accuracy)."""
NONE = -1
"""The class of an answer that no training question has."""
ATTEMPTS = 10
"""Draws of a question that is asked about other pictures only."""
MOST_UNANSWERED = 0.5
PUNCTUATION, ARTICLES = ';/[]"{}()=+\\_-><@`,?!', ("a", "an", "the")
NUMBERS = {"none": "0"} | {w: str(n) for n, w in enumerate(
    ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
)}  # fmt: skip
"""VQA's, of its evaluation."""


@dataclass(frozen=True)
class Question:
    """``place``: its picture. ``credit``: what answers are worth, the best first; most have one answer, worth 1."""

    place: int
    text: str
    credit: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Questions:
    """A split of questions. ``graded``: answers of several people, worth shares."""

    store: Store
    sizes: Mapping[int, tuple[int, int]]
    questions: tuple[Question, ...]
    answers: tuple[str, ...]
    vocabulary: Vocabulary
    variation: Variation
    graded: bool

    def __len__(self) -> int:
        return len(self.questions)

    def credit(self, k: int) -> Tensor:
        """What each class is worth as an answer to question k, (answers,)."""
        out = torch.zeros(len(self.answers))
        for answer, worth in self.questions[k].credit:
            if (at := self._numbers.get(answer, NONE)) != NONE:
                out[at] = worth
        return out

    def answer(self, k: int) -> int:
        """The class of the best answer to question k, `NONE` if no class is one."""
        return next((self._numbers[a] for a, _ in self.questions[k].credit if a in self._numbers), NONE)

    def example(self, k: int, draw: Draw | None = None) -> Example:
        own = self.questions[k]
        picture = read_picture(self.store, own.place, self.sizes[own.place])
        target: dict[str, Any] = {"question": self._encoded([k])[0], "answer": self.answer(k)}
        if self.graded:
            target["credit"] = self.credit(k)
        if draw is not None:
            target |= self._companions(k, generator(draw[0], "questions", draw[1], draw[2]))
        return Example(self.variation({"picture": picture}, draw)["picture"], target)

    def take(self, index: Iterable[int]) -> Questions:
        """The questions of these numbers."""
        return replace(self, questions=tuple(self.questions[i] for i in index))

    def _encoded(self, numbers: Iterable[int]) -> Tensor:
        """Questions as words, (questions, tokens)."""
        known, length = self._known_texts, self.variation.settings.words
        texts = [self.questions[k].text for k in numbers]
        for text in texts:
            if text not in known:
                known[text] = self.vocabulary.encode(text, length)
        return torch.stack([known[t] for t in texts]) if texts else torch.zeros(0, length, dtype=torch.int64)

    def _companions(self, k: int, rng: np.random.Generator) -> dict[str, Any]:
        """Other questions of the picture (again the same, if it has too few) with their answers, and as many as all of
        these that belong to other pictures."""
        wanted, place = self.variation.settings.texts, self.questions[k].place
        own = self._by_place[place]
        others = rng.permutation([i for i in own if i != k] or [k])
        matched = np.resize(others, wanted - 1).tolist()
        asked = {self.questions[i].text for i in own}
        unmatched = []
        for _ in range(wanted):
            for _ in range(ATTEMPTS):
                other = int(rng.integers(len(self)))
                if self.questions[other].text not in asked:
                    break
            unmatched.append(other)
        out = {"matched": self._encoded(matched), "unmatched": self._encoded(unmatched)}
        out["matched_answers"] = torch.tensor([self.answer(i) for i in matched], dtype=torch.int64)
        if self.graded:
            none = torch.zeros(0, len(self.answers))
            out["matched_credits"] = torch.stack([self.credit(i) for i in matched]) if matched else none
        return out

    @cached_property
    def _known_texts(self) -> dict[str, Tensor]:
        return {}

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {answer: k for k, answer in enumerate(self.answers)}

    @cached_property
    def _by_place(self) -> dict[int, list[int]]:
        out: dict[int, list[int]] = defaultdict(list)
        for i, question in enumerate(self.questions):
            out[question.place].append(i)
        return out


# --- reading ---


def look(path: Path, words: Words) -> Path | None:
    """The file of a part: json or npz."""
    if path.is_file():
        return path if path.suffix in (".json", ".npz") else None
    found = named((f for f in path.iterdir() if f.suffix in (".json", ".npz")), words)
    if not found and words and (inner := folder_of(path, words)) is not None:
        found = sorted(f for f in inner.iterdir() if f.suffix in (".json", ".npz"))
    usual = [f for f in found if "question" in f.stem.lower()] or [f for f in found if f.suffix == ".npz"]
    return next(iter(usual), None)


@dataclass(frozen=True)
class Read:
    """What one file holds."""

    store: Store
    questions: tuple[Question, ...]
    graded: bool
    mark: str


def load(spec: str, settings: ExampleSettings) -> TaskData:
    """Training, choice and test questions. No picture is in two of them."""
    skipped: Counter[str] = Counter()
    first, second = parts(spec, look, FORMS)
    read = _read(first, skipped)
    known = _sound(read, settings, skipped)
    if second is None:
        tested = _mark(read, known)
        known, test = _by_picture(known, held_out)
    else:
        other = _read(second, skipped)
        test = _sound(other, settings, skipped)
        tested = _mark(other, test)
    common = Counter(a for q in known.questions for a, _ in q.credit[:1])
    answers = tuple(sorted(common, key=lambda a: (-common[a], a))[: settings.answers])
    if len(answers) < 2:
        raise SuperformerError(f"{first}: all questions have the answer {answers[0]!r}: two or more answers are needed")
    given = settings.vocabulary
    texts = (q.text for q in known.questions)
    spoken = vocabulary.of_file(Path(given).expanduser()) if given else vocabulary.of_questions(texts)
    known, test = (replace(s, answers=answers, vocabulary=spoken) for s in (known, test))
    train, choice = _by_picture(known, lambda n: carve(n, settings.choice, "choice"))
    learnable = [k for k in range(len(train)) if train.answer(k) != NONE]
    if len(learnable) < len(train):
        skipped[f"training questions with none of the {len(answers)} answers"] += len(train) - len(learnable)
    strange = sum(test.answer(k) == NONE for k in range(len(test)))
    about = {"vocabulary": spoken.words, "unknown_test_answers": strange}
    return TaskData(train.take(learnable), choice, test, answers, _mark(read, known), tested, dict(skipped), about)


def _mark(read: Read, found: Questions) -> str:
    return digest([read.mark.encode(), str(sorted(found.sizes.items())).encode()])


def _by_picture(split: Questions, cut: Any) -> tuple[Questions, Questions]:
    """Two parts with different pictures."""
    places = np.array(sorted({q.place for q in split.questions}), dtype=np.int64)
    out = set(places[cut(len(places))[1]].tolist())
    first = [k for k, q in enumerate(split.questions) if q.place not in out]
    return split.take(first), split.take(k for k, q in enumerate(split.questions) if q.place in out)


def _sound(read: Read, settings: ExampleSettings, skipped: Counter[str]) -> Questions:
    """The questions whose pictures can be read."""
    found = sizes(read.store, settings.workers)
    asked = {q.place for q in read.questions}
    broken = {
        k: f"{read.store.name(k)}, {size}" for k, size in enumerate(found) if isinstance(size, str) and k in asked
    }
    leave_out("pictures missing or unreadable", list(broken.values()), len(asked), skipped)
    own = tuple(q for q in read.questions if q.place not in broken)
    known = {k: size for k, size in enumerate(found) if not isinstance(size, str)}
    empty = Vocabulary(vocabulary.SPECIAL)
    return Questions(read.store, known, own, (), empty, Variation(settings, square=True), read.graded)


def _read(file: Path, skipped: Counter[str]) -> Read:
    read = _npz(file, skipped) if file.suffix == ".npz" else _json(file, skipped)
    if not read.questions:
        raise SuperformerError(f"{file} has no question with an answer: --data takes {FORMS}")
    return read


def _npz(file: Path, skipped: Counter[str]) -> Read:
    wanted = ("images", "questions", "question_image", "answers")
    with open_npz(file) as content:
        if missing := [key for key in wanted if key not in content.files]:
            has = ", ".join(content.files) or "nothing"
            raise SuperformerError(f"{file} holds {has}: it needs {', '.join(missing)} as well")
        store = image_store(file, read_array(file, content, "images"))
        texts, places, answers = (read_array(file, content, key) for key in wanted[1:])
        names = read_array(file, content, "answer_names") if "answer_names" in content.files else None
    if not (texts.shape == places.shape == answers.shape and texts.ndim == 1 and places.dtype.kind in "iu"):
        shapes = f"{texts.shape}, {places.shape} and {answers.shape}"
        raise SuperformerError(f"{file}: questions, question_image and answers are {shapes}; one of each is needed")
    if len(places) and not 0 <= places.min() <= places.max() < len(store):
        raise SuperformerError(f"{file}: question_image goes to {places.max()}, but there are {len(store)} pictures")
    if names is not None and answers.dtype.kind in "iu":
        known = [str(n) for n in names]
        told = (known[int(a)] if 0 <= int(a) < len(known) else "" for a in answers)
    else:
        told = (str(a) for a in answers)
    items = ((int(p), str(t), [a] if a else []) for p, t, a in zip(places, texts, told, strict=True))
    mark = digest([store.digest().encode(), *(f"{t}\0{a}\0".encode() for t, a in zip(texts, answers, strict=True))])
    return Read(store, _answered(file, items, len(texts), False, skipped), False, mark)


def _json(file: Path, skipped: Counter[str]) -> Read:
    content = read_json(file)
    listed = content.get("questions") if isinstance(content, dict) else content
    if not isinstance(listed, list) or not listed:
        raise SuperformerError(f"{file} has no list of questions: --data takes {FORMS}")
    sound = [q for q in listed if isinstance(q, dict) and isinstance(q.get("question"), str) and _picture_of(q) != ""]
    wrong = [shown(q) for q in listed if not (isinstance(q, dict) and isinstance(q.get("question"), str))]
    wrong += [shown(q) for q in listed if isinstance(q, dict) and "question" in q and _picture_of(q) == ""]
    leave_out("entries without a question or a picture", wrong, len(listed), skipped)
    sound = [_with_answers(q) for q in sound]
    others = _annotations(file) if not any("answer" in q or "answers" in q for q in sound) else {}
    sound = [q | others.get(q.get("question_id"), {}) for q in sound]
    several = any(len(_listed(q.get("answers"))) > 1 for q in sound) and not any("answer" in q for q in sound)
    graded = several or any(isinstance(a, dict) for q in sound for a in _listed(q.get("answers")))
    names = _files([_picture_of(q) for q in sound], file)
    store = where_pictures_are(sorted(set(names)), _folders(file), file)
    place = {name: k for k, name in enumerate(sorted(set(names)))}
    items = ((place[n], q["question"], _told(q, graded)) for n, q in zip(names, sound, strict=True))
    mark = digest([file.read_bytes(), str(sorted(others.items())).encode()])
    return Read(store, _answered(file, items, len(sound), graded, skipped), graded, mark)


def _with_answers(question: dict[str, Any]) -> dict[str, Any]:
    """A question whose ``answer`` is a list has ``answers``."""
    if not isinstance(question.get("answer"), list):
        return question
    return {"answers": question["answer"], **{k: v for k, v in question.items() if k != "answer"}}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _picture_of(question: Mapping[str, Any]) -> str:
    """The name of a question's picture, or its number in digits."""
    name = question.get("image", question.get("picture", question.get("image_id", "")))
    return str(name) if isinstance(name, str | int) else ""


def _told(question: Mapping[str, Any], graded: bool) -> list[str]:
    """The answers to a question: of many people, or the one."""
    answers = _listed(question.get("answers"))
    if graded:
        said = (a.get("answer") if isinstance(a, dict) else a for a in answers or [question.get("answer")])
        return [normalised(str(a)) for a in said if isinstance(a, str | int) and a != ""]
    one = question.get("answer", answers[0] if answers else None)
    return [str(one)] if isinstance(one, str | int) and str(one).strip() else []


def normalised(answer: str) -> str:
    """An answer as VQA's evaluation compares it: without punctuation and articles, numbers as digits. Its table of
    contractions (dont is don't) is left out."""
    text = answer.strip()
    for sign in PUNCTUATION:
        apart = f"{sign} " in answer or f" {sign}" in answer or re.search(r"\d,\d", answer)
        text = text.replace(sign, "" if apart else " ")
    words = [NUMBERS.get(w, w) for w in re.sub(r"(?<!\d)\.(?!\d)", "", text).lower().split()]
    return " ".join(w for w in words if w not in ARTICLES) or answer


def _answered(
    file: Path, items: Iterable[tuple[int, str, list[str]]], total: int, graded: bool, skipped: Counter[str]
) -> tuple[Question, ...]:
    """Questions with what answers are worth; those without an answer are left out."""
    out, unanswered = [], []
    for place, text, told in items:
        counts = Counter(a.strip().lower() for a in told if a.strip())
        if not counts:
            unanswered.append(f"{shown(text)} in {file}")
            continue
        worth = {a: _worth(n, counts.total()) if graded else 1.0 for a, n in counts.items()}
        out.append(Question(place, text, tuple(sorted(worth.items(), key=lambda p: (-counts[p[0]], p[0])))))
    leave_out("questions without an answer", unanswered, total, skipped, MOST_UNANSWERED)
    return tuple(out)


def _worth(said: int, people: int) -> float:
    """VQA's accuracy of an answer that so many of the people gave: min(said / 3, 1), the mean of leaving each out."""
    if people <= ANSWERED_BY:
        return said / people
    without, others = min((said - 1) / ANSWERED_BY, 1.0), min(said / ANSWERED_BY, 1.0)
    return (said * without + (people - said) * others) / people


def _annotations(file: Path) -> dict[Any, Any]:
    """VQA 2.0: the answers to the questions of a file, by question_id, from the file beside it that has them."""
    part = [w for w in (*TRAIN, *TEST) if named([file], (w,))]
    beside = [f for f in file.parent.glob("*annotations*.json") if f != file]
    found = named(beside, tuple(part)) if part else beside
    if not found:
        return {}
    content = read_json(found[0])
    listed = _listed(content.get("annotations")) if isinstance(content, dict) else []
    return {
        a["question_id"]: {"answers": a.get("answers")} for a in listed if isinstance(a, dict) and "question_id" in a
    }


def _folders(file: Path) -> Iterator[Path]:
    """Where the pictures of a json may be."""
    tails = [w for w in (*TRAIN, *TEST) if named([file], (w,))] + re.findall(r"(?:train|val|test)20\d\d", file.stem)
    for root in (file.parent, file.parent.parent):
        for tail in tails:
            yield from (root / tail / "images", root / tail, root / "images" / tail)
    yield from (file.parent / "images", file.parent, file.parent.parent / "images")


def _files(names: Sequence[str], file: Path) -> list[str]:
    """File names as they are; numbers (VQA 2.0's image_id) as the files that end in them."""
    if not all(name.isdecimal() for name in names):
        return list(names)
    by_number: dict[int, str] = {}
    for folder in _folders(file):
        for name in pictures_below(folder) if folder.is_dir() else ():
            if digits := re.search(r"(\d+)$", Path(name).stem):
                by_number.setdefault(int(digits[1]), name)
    return [by_number.get(int(name), f"{name}.jpg") for name in names]
