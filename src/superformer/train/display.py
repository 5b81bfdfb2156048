"""What a training run tells while it goes: a live line on a terminal, lines in a log, ``metrics.jsonl`` always."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from superformer import files
from superformer.progress import Clock, Tell, teller
from superformer.runs import stored
from superformer.space import Space
from superformer.space.arch import Arch


class Metrics:
    """``metrics.jsonl``: one line of JSON for everything measured; TensorBoard's files beside it, if it is there."""

    def __init__(self, path: Path, step: int, tell: Tell = lambda text: None):
        """Lines after ``step`` are of steps that will be done again: they are taken out."""
        self.path, damaged = path, list[int]()
        if path.exists():
            kept = [row for row in stored.read_lines(path, damaged) if row["step"] <= step]
            if damaged:
                aside = path.with_name(path.name + ".damaged")
                files.write(aside, path.read_bytes())
                tell(f"warning: {len(damaged)} lines of {path} were damaged, and are left out ({aside.name} has them)")
            files.write(path, "".join(map(files.line, kept)))
        with files.disk_errors(path):
            self.file = open(path, "a", buffering=1)  # noqa: SIM115  # closed by close()
        try:
            from torch.utils.tensorboard import SummaryWriter

            self.board: Any = SummaryWriter(str(path.parent / "tensorboard"), purge_step=step + 1)
        except ImportError:
            self.board = None

    def write(self, kind: str, step: int, **values: Any) -> None:
        with files.disk_errors(self.path):
            self.file.write(files.line({"kind": kind, "step": step, **values}))
        if self.board is not None:
            for name, value in values.items():
                for key, number in value.items() if isinstance(value, Mapping) else ((None, value),):
                    if isinstance(number, int | float):
                        self.board.add_scalar(f"{kind}/{name}" + (f"/{key}" if key else ""), number, step)

    def close(self) -> None:
        self.file.close()
        if self.board is not None:
            self.board.close()


class Pace:
    """How fast it goes, on average over the recent steps: ``speed`` in pictures a second, and ``idle``, the share of
    the time that the device waited for pictures."""

    def __init__(self) -> None:
        self.images = self.seconds = self.idled = self._waited = self.speed = self.idle = 0.0

    def note(self, images: int, seconds: float, waited: float) -> None:
        """A step, and the seconds that its epoch has waited so far."""
        idle = waited - self._waited if waited >= self._waited else waited
        self._waited = waited
        self.images = 0.95 * self.images + images
        self.seconds = 0.95 * self.seconds + (seconds + idle)
        self.idled = 0.95 * self.idled + idle

        self.speed, self.idle = (amount / max(self.seconds, 1e-9) for amount in (self.images, self.idled))


class Display:
    """Progress: a bar on a terminal, else a line every so often."""

    def __init__(self, console: Console, total: int, done: int):
        self.console, self.total, self.begun, self.clock = console, total, done, Clock()
        self.progress: Progress | None = None
        if console.is_terminal:
            said = TextColumn("{task.fields[said]}")
            columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), said, TimeElapsedColumn())
            self.progress = Progress(*columns, console=console)
            self.task = self.progress.add_task("", total=total, completed=done, said="")
            self.progress.start()

    def revise(self, total: int) -> None:
        """There are more steps, or fewer, than was said."""
        self.total = total
        if self.progress is not None:
            self.progress.update(self.task, total=total)

    def left(self, done: int) -> float:
        """Seconds that remain, at the speed so far."""
        return self.clock.seconds / max(done - self.begun, 1) * (self.total - done)

    def step(self, done: int, **values: float) -> None:
        said = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
        minutes, seconds = divmod(round(self.left(done)), 60)
        hours, minutes = divmod(minutes, 60)
        said += f"  {hours}:{minutes:02d}:{seconds:02d} left" if hours else f"  {minutes}:{seconds:02d} left"
        if self.progress is not None:
            self.progress.update(self.task, completed=done, said=said)
        elif self.clock.due() or done == self.total:
            teller(self.console)(f"step {done} of {self.total}  {said}")

    def note(self, text: str) -> None:
        """A line that stays."""
        teller(self.progress.console if self.progress is not None else self.console)(text)

    def close(self) -> None:
        if self.progress is not None:
            self.progress.stop()


def watched(space: Space, networks: int, seed: int) -> dict[str, Arch]:
    """The sub-networks whose accuracy tells the health of a training, always the same: the smallest, the largest and a
    few random ones; of a network by itself, the network."""
    if space.size == 1:
        return {"of the network": space.smallest()}
    random = enumerate(space.sample(networks, seed=seed) if networks else [], 1)
    return {"smallest": space.smallest(), "largest": space.largest(), **{f"random {i}": arch for i, arch in random}}
