"""scikit-learn's digits, which come with Muster."""

from __future__ import annotations

import csv
import gzip
import io
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
from PIL import Image

from muster.store.images import row_of

DIGITS = "digits"  # what the embedded images are called


@dataclass(frozen=True)
class DigitsSource:
    """(images, 8, 8) uint8, 0 to 255."""

    images: Any

    def read(self, row: int) -> Image.Image:
        """See Source."""
        return Image.fromarray(self.images[row])

    def place(self, row: int) -> str:
        """digits[row]."""
        return row_of(DIGITS, row)


def read_digits() -> tuple[Any, list[int]]:
    """scikit-learn's digits: (1797, 8, 8) uint8, whose 0..16 become 0..255, and what each of them is.

    The file is scikit-learn's own (digits.csv.gz): the test part of E. Alpaydin and C. Kaynak, Optical
    Recognition of Handwritten Digits (1998), UCI Machine Learning Repository, CC BY 4.0.
    """
    packed = resources.files("muster.worker.data").joinpath("digits.csv.gz").read_bytes()
    text = io.StringIO(gzip.decompress(packed).decode("ascii"))
    rows = np.array([[float(value) for value in line] for line in csv.reader(text)])
    images = np.rint(rows[:, :64] * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8)
    return images, [int(label) for label in rows[:, 64]]
