"""Files of lines and separators, as texts: encoding and separator are recognised, lines keep numbers."""

import csv
import gzip
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pandas as pd

from idiolect.errors import UserError

SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|"}
ENCODINGS = {"utf-8": "utf-8-sig", "utf-16": "utf-16", "latin-1": "cp1252"}  # Windows' Latin-1
LINES_TO_JUDGE = 200  # by which the separator is recognised
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
    layout = _Layout.of(body, separator)
    columns = pd.read_csv(
        io.StringIO(body),
        sep=separator,
        header=None,
        names=range(len(layout.header)),
        index_col=False,
        dtype=str,
        na_filter=False,
        skipinitialspace=True,
    )
    if len(columns) != len(layout.lines):
        raise UserError("a quote is opened and not closed, or closed and not opened")
    first = 1 + (1 if hint else 0)
    frame = columns.iloc[1:].set_axis(layout.header, axis=1)
    frame.index = pd.Index([line + first for line in layout.lines[1:]], name="line", dtype="int64")
    empty = (frame.apply(lambda values: values.str.strip()) == "").all(axis=1)
    notes = (f"lines without values left out: {int(empty.sum())}",) if empty.any() else ()
    return Texts(frame[~empty], encoding, separator, notes)


def refuse_repeated(header: Sequence[str]) -> None:
    """Refuse a name that two columns have."""
    if repeated := sorted({name for name in header if header.count(name) > 1}):
        raise UserError(f"it has the column {repeated[0]!r} twice")


def counts_rows(texts: Sequence[str]) -> bool:
    """Whether texts are whole numbers that go up by one, as row numbers do."""
    return all(re.fullmatch(r"\d{1,15}", text) for text in texts) and all(
        int(text) == int(texts[0]) + place for place, text in enumerate(texts)
    )


@dataclass(frozen=True)
class _Layout:
    """The header, and how many lines are before each record (the header's first)."""

    header: list[str]
    lines: list[int]

    @classmethod
    def of(cls, text: str, separator: str) -> "_Layout":
        """Read the layout, and refuse lines that have more or fewer fields than the header."""
        records = _records(text, separator)
        line, first = next(records)
        lines, sizes, starts, ends = [line], set(), [], True
        odd = None
        for line, record in records:
            lines.append(line)
            sizes.add(len(record))
            ends = ends and not record[-1].strip()
            starts.append(record[0].strip())
            if odd is None and len(record) != len(first):
                odd = (line, len(record))
        header = [name.strip() for name in first]
        if odd is not None and sizes != {len(first) + 1}:
            raise UserError(f"line {odd[0] + 1} has {odd[1]} fields and the header has {len(first)}")
        if odd is not None and ends:  # a separator behind the last field of each line
            header.append("")
        elif odd is not None and counts_rows(starts):  # R's row names
            header.insert(0, "")
        elif odd is not None:
            raise UserError(f"every line has {odd[1]} fields and the header has {len(first)}")
        header = [name or f"Unnamed: {place}" for place, name in enumerate(header)]
        refuse_repeated(header)
        return cls(header, lines)


def _records(text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """The records that are not empty, and how many lines are before each."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True)
    before = 0
    for record in reader:
        if len(record) > 1 or (record and record[0].strip()):
            yield before, record
        before = reader.line_num


def _separator(text: str) -> str:
    """The separator that divides the header and all lines alike."""
    fields, alike = {}, []
    for word, separator in SEPARATORS.items():
        counts = [len(record) for _, record in islice(_records(text, separator), LINES_TO_JUDGE)]
        fields[word] = counts[0]
        if counts[0] > 1 and len(set(counts[1:])) <= 1 and set(counts[1:]) <= {counts[0], counts[0] + 1}:
            alike.append(word)
    if len(alike) > 1:
        raise AmbiguousError(alike)
    return SEPARATORS[alike[0] if alike else max(fields, key=lambda word: fields[word])]


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
