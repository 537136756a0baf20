"""The functions of a recording, by the instructions that ran in them: python functions.py FILE [HOW MANY]"""

import sys

import numpy as np
from numpy.typing import NDArray

import cofi


def count(recording: cofi.Recording) -> NDArray[np.float64]:
    """Instructions, by the number of the function in which their block begins."""
    counts = np.zeros(0)
    for thread in recording.threads:
        for blocks in thread.blocks():
            if blocks.gap_before is not None:
                print(f"{thread}: {blocks.gap_before}", file=sys.stderr)
            more = np.bincount(blocks.function, weights=blocks.instructions)
            if len(more) > len(counts):
                counts = np.pad(counts, (0, len(more) - len(counts)))
            counts[: len(more)] += more
    return counts


def main() -> None:
    recording = cofi.open(sys.argv[1])
    for sentence in recording.missing:
        print(sentence, file=sys.stderr)
    counts = count(recording)
    many = int(sys.argv[2]) if len(sys.argv) > 2 else 10
    for number in np.argsort(-counts, kind="stable")[:many]:
        print(f"{int(counts[number]):>14,}  {recording.function_name(int(number))}")


if __name__ == "__main__":
    main()
