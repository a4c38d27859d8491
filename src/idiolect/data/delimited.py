"""Files of lines and separators, as texts: encoding and separator are recognised, lines keep numbers."""

import csv
import gzip
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from idiolect.errors import UserError

SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|"}
ENCODINGS = {"utf-8": "utf-8-sig", "utf-16": "utf-16", "latin-1": "cp1252"}  # Windows' Latin-1
CHARACTERS_TO_JUDGE = 100_000  # by which the separator is recognised
CHUNK = 50_000  # records at a time
_NO_TEXT = re.compile("[\x00-\x08\x0e-\x1f\ufeff\ufffd\ufffe\uffff]")
_EXCELS_HINT = re.compile(r'"?sep=(.)"?\r?\n')


class AmbiguousError(UserError):
    """Several separators are possible; `words` says which."""

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__(f"its lines can be divided by {' and by '.join(words)}")
        self.words = words


@dataclass(frozen=True)
class Texts:
    """A file's columns as texts, indexed by line, and how it was read."""

    frame: pd.DataFrame
    encoding: str
    separator: str
    notes: tuple[str, ...]


def read_texts(path: Path, encoding: str | None, separator: str | None) -> Texts:
    """Read a file; what is not given is recognised."""
    raw = path.read_bytes()
    text, encoding = _decoded(gzip.decompress(raw) if path.suffix.lower() == ".gz" else raw, encoding)
    hint = _EXCELS_HINT.match(text)
    body = text[hint.end() :] if hint else text
    if not body.strip():
        raise UserError("it is empty")
    separator = separator or (hint.group(1) if hint else _separator(body))
    frame = _frame(body, separator, 2 if hint else 1)
    empty = np.logical_and.reduce([frame[name].str.strip() == "" for name in frame])
    notes = (f"lines without values left out: {int(empty.sum())}",) if empty.any() else ()
    return Texts(frame[~empty], encoding, separator, notes)


def refuse_repeated(header: Sequence[str]) -> None:
    """Refuse a name that two columns have."""
    if repeated := sorted({name for name in header if header.count(name) > 1}):
        raise UserError(f"it has the column {repeated[0]!r} twice")


def counts_rows(texts: "pd.Series[str]") -> bool:
    """Whether texts are whole numbers that go up by one, as row numbers do."""
    if not texts.str.fullmatch(r"\d{1,15}").all():
        return False
    return bool((texts.astype("int64").diff().iloc[1:] == 1).all())


def _frame(text: str, separator: str, first_line: int) -> pd.DataFrame:
    """All columns under their header, indexed by line; lines of other lengths are refused."""
    records = _records(text, separator)
    _, first = next(records)
    header = [name.strip() for name in first]
    lines: list[int] = []
    chunks: list[list[pa.Array]] = []
    width = len(header)
    while chunk := list(islice(records, CHUNK)):
        width = len(chunk[0][1]) if not chunks else width
        for before, record in chunk:
            if len(record) != width or not 0 <= width - len(header) <= 1:
                line = before + first_line
                raise UserError(f"line {line} has {len(record)} fields and the header has {len(header)}")
        lines += [before + first_line for before, _ in chunk]
        fields = zip(*(record for _, record in chunk), strict=True)
        chunks.append([pa.array(column, pa.string()) for column in fields])
    arrays = [pa.chunked_array([c[k] for c in chunks], pa.string()) for k in range(width)]
    columns = {k: array.to_pandas() for k, array in enumerate(arrays)}
    if width > len(header):
        if (columns[width - 1].str.strip() == "").all():  # a separator behind the last field of each line
            header.append("")
        elif counts_rows(columns[0].str.strip()):  # R's row names
            header.insert(0, "")
        else:
            raise UserError(f"every line has {width} fields and the header has {len(header)}")
    header = [name or f"Unnamed: {place}" for place, name in enumerate(header)]
    refuse_repeated(header)
    index = pd.Index(lines, name="line", dtype="int64")
    return pd.DataFrame(columns).set_axis(header, axis=1).set_axis(index, axis=0)


def _records(text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """The records that are not empty, and how many lines are before each."""
    lines = io.StringIO(text, newline="")
    reader = csv.reader(lines, delimiter=separator, skipinitialspace=True, strict=True)
    before = 0
    try:
        for record in reader:
            if len(record) > 1 or (record and record[0].strip()):
                yield before, record
            before = reader.line_num
    except csv.Error as error:
        raise UserError(f"the quotes of the record in line {before + 1} are wrong ({error})") from None


def _separator(text: str) -> str:
    """The separator that divides the header and all lines alike."""
    fields, alike = {}, []
    for word, separator in SEPARATORS.items():
        counts = _counts(text[:CHARACTERS_TO_JUDGE], separator)
        fields[word] = counts[0]
        if counts[0] > 1 and len(set(counts[1:])) <= 1 and set(counts[1:]) <= {counts[0], counts[0] + 1}:
            alike.append(word)
    if len(alike) > 1:
        raise AmbiguousError(alike)
    return SEPARATORS[alike[0] if alike else max(fields, key=lambda word: fields[word])]


def _counts(text: str, separator: str) -> list[int]:
    """How many fields the first records have; without the last one, which may have been cut."""
    counts = []
    try:
        for _, record in _records(text, separator):
            counts.append(len(record))
    except UserError:  # quotes make no sense with this separator, or were cut
        pass
    return counts[:-1] if len(text) == CHARACTERS_TO_JUDGE and len(counts) > 1 else counts or [1]


def _decoded(raw: bytes, encoding: str | None) -> tuple[str, str]:
    """The text, and Python's name of its encoding."""
    for candidate in [encoding] if encoding else _possible_encodings(raw):
        try:
            text = raw.decode(candidate)
        except UnicodeDecodeError:
            continue
        if not _NO_TEXT.search(text):
            return text, candidate
    words = {python: word for word, python in ENCODINGS.items()}
    raise UserError(f"it is no text in {words[encoding] if encoding else 'UTF-8, UTF-16 or Latin-1'}")


def _possible_encodings(raw: bytes) -> list[str]:
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        return ["utf-16"]
    start = raw[:4000]
    if b"\0" in start:  # Latin letters in UTF-16 have a zero in every other byte
        return ["utf-16-le" if start[1::2].count(0) > start[0::2].count(0) else "utf-16-be"]
    return ["utf-8-sig", "cp1252"]
