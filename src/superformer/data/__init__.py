"""Pictures: what ``--data`` means, splits that keep the test part untouched, and batches that any run can go on from.

`load` gives a data set; ``.train`` and ``.search`` are of its training data, ``.test()`` is for the last figure."""

from __future__ import annotations

from superformer.data.batches import Batch, Prefetcher, eval_batches, steps_per_epoch, train_batches
from superformer.data.dataset import DataSet, Pictures, load

__all__ = ["Batch", "DataSet", "Pictures", "Prefetcher", "eval_batches", "load", "steps_per_epoch", "train_batches"]
