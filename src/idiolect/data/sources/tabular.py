"""Rows of features with a natural owner: vowels by speaker, pen digits by writer, activities by person."""

import io
import re
import zipfile
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import numpy as np
import pandas as pd

from idiolect.data.federation import Federation
from idiolect.data.sources.downloads import RemoteFile, find, load_arrays, obtain
from idiolect.data.sources.lzw import decompress
from idiolect.data.splits import DEFAULT_FRACTIONS, Fractions
from idiolect.data.tables import from_frame
from idiolect.errors import UserError

_VOWELS = ("hid", "hId", "hEd", "hAd", "hYd", "had", "hOd", "hod", "hUd", "hud", "hed")
_ACTIVITIES = ("walking", "upstairs", "downstairs", "sitting", "standing", "lying")
_PENDIGITS = RemoteFile(
    "pen+based+recognition+of+handwritten+digits.zip",
    "https://archive.ics.uci.edu/static/public/81/pen+based+recognition+of+handwritten+digits.zip",
    "1e02bea023613c2b11c9492f6f34caf975420455934f3527d270cee9a1f03b64",
)
_HAR = RemoteFile(
    "human+activity+recognition+using+smartphones.zip",
    "https://archive.ics.uci.edu/static/public/240/human+activity+recognition+using+smartphones.zip",
    "c00b803081a5c797cd5e4b83700a9810b38d53d9d84e01917e090e1fdbc81031",
)


def vowels(
    *, seed: int, fractions: Fractions = (1 / 3, 1 / 6, 1 / 2), left_out: Sequence[str] = ()
) -> Federation:
    """Eleven English vowels by 15 speakers, 66 utterances each, ten features; comes with the package.

    Deterding's vowels (UCI Machine Learning Repository, data set 152, CC BY 4.0). Speakers differ more
    than vowels do, so one model for all is far worse than one for each. By default 22 rows of a speaker
    are for training, 11 for validation and 33 for testing: few enough to gain from the other speakers.
    """
    packed = resources.files("idiolect.data").joinpath("bundled", "vowel_speakers.csv.gz").read_bytes()
    frame = pd.read_csv(io.BytesIO(packed), compression="gzip")
    frame["vowel"] = [_VOWELS[v] for v in frame["vowel"]]
    frame["speaker"] = [f"speaker-{s:02d}" for s in frame["speaker"]]
    return from_frame(
        frame,
        client="speaker",
        target="vowel",
        ignore=("uci_test", "sex"),
        seed=seed,
        fractions=fractions,
        left_out=left_out,
    )


def pendigits(
    *,
    seed: int,
    data_dir: str | Path | None = None,
    fractions: Fractions = DEFAULT_FRACTIONS,
    left_out: Sequence[str] = (),
) -> Federation:
    """Digits written with a pen on a tablet by 44 people, 250 each, eight points of the stroke.

    Pen-Based Recognition of Handwritten Digits (UCI, data set 81, CC BY 4.0); the writers come from the
    original pen recordings, in which writers 1 to 30 are UCI's training set and 31 to 44 its test set.
    """
    if path := find("pendigits_writers", "pendigits_writers.npz", data_dir):
        points, digits, writers = load_arrays(path, "x", "y", "writer")
    else:
        points, digits, writers = _uci_pendigits(obtain(_PENDIGITS, "pendigits_writers", data_dir))
    frame = pd.DataFrame(points, columns=[f"{axis}{i}" for i in range(1, 9) for axis in "xy"])
    frame["digit"] = digits
    frame["writer"] = [f"writer-{w:02d}" for w in writers]
    return from_frame(
        frame, client="writer", target="digit", seed=seed, fractions=fractions, left_out=left_out
    )


def har(
    *,
    seed: int,
    data_dir: str | Path | None = None,
    fractions: Fractions = DEFAULT_FRACTIONS,
    left_out: Sequence[str] = (),
) -> Federation:
    """Six activities of 30 people from the sensors of a phone, about 350 windows each.

    Human Activity Recognition Using Smartphones (UCI, data set 240). Windows overlap by half, so each
    activity of each person is split by time: first training, then validation, then test.

    A data directory may hold windows of the same people's raw signals with 78 features
    (hapt_har/hapt_features.npz); the download has UCI's own 561 features.
    """
    if path := find("hapt_har", "hapt_features.npz", data_dir):
        features, activities, people, names = load_arrays(path, "x", "y", "user", "names")
    else:
        features, activities, people, names = _uci_har(obtain(_HAR, "hapt_har", data_dir))
    frame = pd.DataFrame(features, columns=[str(name) for name in names])
    frame["activity"] = [_ACTIVITIES[a] for a in activities]
    frame["person"] = [f"person-{p:02d}" for p in people]
    return from_frame(
        _by_time_within_activity(frame),
        client="person",
        target="activity",
        seed=seed,
        fractions=fractions,
        shuffle=False,
        left_out=left_out,
    )


def _by_time_within_activity(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows in an order whose first 60 %, say, are the first 60 % of every activity of every person."""
    groups = frame.groupby(["person", "activity"])["person"]
    moment = (groups.cumcount() + 0.5) / groups.transform("size")
    return frame.iloc[np.argsort(moment.to_numpy(), kind="stable")].reset_index(drop=True)


def _uci_pendigits(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points, digits and writers of UCI's archive, whose two versions have the same row order."""
    points, digits, writers = [], [], []
    with zipfile.ZipFile(path) as archive:
        for part, first_writer in (("tra", 0), ("tes", 30)):
            table = np.loadtxt(io.BytesIO(archive.read(f"pendigits.{part}")), delimiter=",", dtype=np.int64)
            recording = decompress(archive.read(f"pendigits-orig.{part}.Z")).decode("ascii")
            marks = np.array(
                re.findall(r"^\.COMMENT\s+(\d+)\s+(\d+)\s+\d+", recording, re.MULTILINE), np.int64
            )
            if len(marks) != len(table) or (marks[:, 0] != table[:, -1]).any():
                raise UserError(f"the file {str(path)!r} does not hold the pen digits in the known order")
            points.append(table[:, :-1])
            digits.append(table[:, -1])
            writers.append(marks[:, 1] + first_writer)
    return np.concatenate(points), np.concatenate(digits), np.concatenate(writers)


def _uci_har(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Features, activities, people and feature names of UCI's archive, an archive in an archive."""
    with (
        zipfile.ZipFile(path) as outer,
        zipfile.ZipFile(io.BytesIO(outer.read("UCI HAR Dataset.zip"))) as inner,
    ):

        def table(name: str) -> pd.DataFrame:
            return pd.read_csv(io.BytesIO(inner.read(f"UCI HAR Dataset/{name}")), sep=r"\s+", header=None)

        parts = {
            name: np.concatenate(
                [table(f"{part}/{name}_{part}.txt").to_numpy() for part in ("train", "test")]
            )
            for name in ("X", "y", "subject")
        }
        listed = table("features.txt")
    names = np.array([f"{number}-{name}" for number, name in listed.to_numpy()])  # names alone repeat
    return parts["X"], parts["y"][:, 0] - 1, parts["subject"][:, 0], names
