"""The command line. It reads words, calls the library and prints; it holds no logic of its own.

`arguments` has what commands share, `fit` the way from a pretrained network to faster ones, `find` from pictures to a
network, `transfer` from a network to other tasks, `use` what is published or found, `devices` measuring elsewhere,
`plan` what a training will take, `claims` the papers' measured again."""

from __future__ import annotations

import io
import sys

import typer

from superformer.cli import claims, devices, find, fit, plan, transfer, use
from superformer.cli.arguments import app
from superformer.errors import StoppedError, SuperformerError, shown
from superformer.progress import note_begin, note_interrupts, take_begin

__all__ = ["app", "claims", "devices", "find", "fit", "main", "plan", "transfer", "use"]


def _out_of_memory(error: Exception) -> bool:
    """torch has no error of its own for the memory of processors."""
    told = type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and told)


def main() -> None:
    """Exit status 0: done; 2: a mistake in what was asked, in one line; 1: anything else."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # a log can be followed while it is written
    note_interrupts()
    note_begin()
    try:
        status = app(standalone_mode=False)
        if status == 130:  # what typer makes of Ctrl-C
            raise KeyboardInterrupt
        sys.exit(status or 0)
    except (SuperformerError, StoppedError) as error:
        print(f"superformer: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, SuperformerError) else 1)
    except (KeyboardInterrupt, typer.Abort):
        kept = "what was finished is kept, and the same command goes on from there"
        print(f"superformer: stopped; {kept}", file=sys.stderr)
        sys.exit(1)
    except OSError as error:  # a name that is too long, a disk that went away
        print(f"superformer: {shown(str(error.filename or 'a file'))}: {error.strerror or error}", file=sys.stderr)
        sys.exit(1)
    except Exception as error:
        if _out_of_memory(error):
            how = "use smaller batches (train.batch_size, train.accumulate) or pictures, or a smaller space"
            print(f"superformer: there is not enough memory for this: {how}", file=sys.stderr)
            sys.exit(1)
        if not hasattr(error, "format_message"):  # typer's own complaints about words have it
            raise
        print(f"superformer: {error.format_message()} (superformer --help lists the commands)", file=sys.stderr)
        sys.exit(2)
    finally:
        take_begin()
