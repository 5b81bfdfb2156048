"""A data set in three parts: training, search (carved from training data) and test, which nobody opens before it is asked for."""

from __future__ import annotations

from functools import cached_property

from superformer.data.frames import Frame
from superformer.data.pictures import Pictures
from superformer.data.sources import Source, resolve
from superformer.data.split import split
from superformer.errors import SuperformerError
from superformer.recipes.settings import Data

HELD_OUT = 0.2
"""Share of each class that is held out as the test part, where none is given."""


class DataSet:
    """The parts of a data set. Each is read when it is first used; the splits are always the same.

    ``test_origin`` says where the test part comes from. ``fingerprint`` changes when the training data (with the search split) do.
    """

    def __init__(self, spec: str, settings: Data, img_size: int):
        self.spec, self.settings, self.img_size = spec, settings, img_size
        self.frame = Frame(img_size, settings.crop, settings.interpolation)
        self._source: Source = resolve(spec, settings.memory)
        self.classes = self._source.train.classes
        self._all = Pictures(self._source.train.store, self._source.train.labels, self.classes, settings.memory)
        known, held = self._all, None
        self.test_origin = self._source.test_origin
        if self._source.test is None:
            rest, out = split(self._all.labels, HELD_OUT, "test", self.classes)
            known, held = self._all.take(rest), self._all.take(out)
            self.test_origin = f"{HELD_OUT:.0%} of each class of {spec}, held out"
        self._known, self._held = known, held
        rest, out = split(known.labels, settings.search, "search", self.classes)
        self._train, self._search = known.take(rest), known.take(out)

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @cached_property
    def fingerprint(self) -> str:
        return self._known.fingerprint

    @cached_property
    def train(self) -> Pictures:
        """Pictures to train on."""
        if self.settings.augment == "timm":
            return self._train.keep(self.img_size, self.settings.workers)
        return self._train.squares(self.frame, self.settings.workers)

    @cached_property
    def search(self) -> Pictures:
        """Pictures that compare architectures; none of them is trained on."""
        return self._search.squares(self.frame, self.settings.workers)

    def test(self) -> Pictures:
        """Pictures for the final figure only. Training and search never call this."""
        return self._test

    @cached_property
    def _test(self) -> Pictures:
        part = self._held
        if part is None:
            assert self._source.test is not None
            found = self._source.test()
            if not len(found.labels):
                raise SuperformerError(f"the test set {self.test_origin} has no pictures")
            part = Pictures(found.store, found.labels, self.classes, self.settings.memory)
        return part.squares(self.frame, self.settings.workers)


def load(spec: str, settings: Data, img_size: int) -> DataSet:
    """The data set that a ``--data`` text means, for networks of this input size. Pictures are read when a part is first used."""
    return DataSet(spec, settings, img_size)
