"""A transfer that is killed again and again: ``python killed.py FOLDER MOMENTS WORDS`` (words as JSON) trains one in
FOLDER/whole, and the same in FOLDER/broken with SIGKILL at so many moments. Children are forked by a process that has
imported everything and computed nothing: a start costs little. Prints how often it killed."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

from superformer.runs.storage import list_checkpoints
from superformer.transfer import transfer


def begun(words: dict[str, object], folder: Path) -> int:
    """A child that trains."""
    if (child := os.fork()) != 0:
        return child
    status = 1
    try:
        transfer(words["task"], words["data"], folder, *words["changes"], backbone=words["backbone"])  # type: ignore
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def newest(folder: Path) -> str:
    found = list_checkpoints(folder / "checkpoints")
    return found[-1].name if found else ""


def main(folder: Path, moments: int, words: dict[str, object]) -> None:
    if ended(begun(words, folder / "whole")):
        sys.exit("the transfer that nobody killed failed")
    rng, kills = random.Random(0), 0
    while kills < moments:
        before, child = newest(folder / "broken"), begun(words, folder / "broken")
        done = False
        while newest(folder / "broken") <= before and not done:
            done = os.waitpid(child, os.WNOHANG)[0] != 0
            time.sleep(0.002)
        time.sleep(0.1 * rng.random())
        if done or os.waitpid(child, os.WNOHANG)[0]:
            break
        os.kill(child, signal.SIGKILL)
        ended(child)
        kills += 1
    if ended(begun(words, folder / "broken")):
        sys.exit("it could not go on")
    print(kills)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]))
