"""Who was turned away at the door, as the SuperLink's log tells: the only place where Flower says it."""

import re
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from idiolect.silo.certificates import cryptography_parts, key_mark
from idiolect.silo.keys import SiloKey

AGAIN_SECONDS = 600.0  # before the same is told again
_MOST_TOLD = 100  # different ones, in that time
_MOST_BYTES = 2**20  # of the log in one look
_LOGIN = re.compile(
    r"\[/flwr\.proto\.Fleet/(ActivateNode|RegisterNode)\]\[ApiError:\d+\].*?public key: b'(.*?)'(.*)"
)
_HANDSHAKE = re.compile(r"Handshake failed with error (.*)")
_OTHERS = "others with further unknown keys"


class FailedLogins:
    """Reads on where it was."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._place = path.stat().st_size if path.is_file() else 0
        self._told: dict[str, tuple[float, int]] = {}  # when, and how often since

    def new(
        self, admitted: Iterable[SiloKey], revoked: Iterable[SiloKey], names: Collection[str]
    ) -> Iterator[str]:
        """A sentence for each kind of failure since the last look that is worth another line."""
        whose = {key.mark: f"a key of {key.name} that was revoked or replaced" for key in revoked}
        for key in admitted:
            whose[key.mark] = _why_admitted_failed(key, names)
        for line in self._lines():
            sentence = _sentence(line, whose)
            if sentence and (told := self._worth_telling(sentence)):
                yield told

    def _lines(self) -> list[str]:
        if not self.path.is_file():
            return []
        with self.path.open("rb") as file:
            file.seek(self._place)
            text = file.read(_MOST_BYTES)
        whole = text[: text.rfind(b"\n") + 1] if len(text) < _MOST_BYTES else text
        self._place += len(whole)
        return whole.decode("utf-8", errors="replace").splitlines()

    def _worth_telling(self, sentence: str) -> str:
        now = time.monotonic()
        if sentence not in self._told and len(self._told) >= _MOST_TOLD:
            self._told = {key: told for key, told in self._told.items() if now - told[0] < AGAIN_SECONDS}
            sentence = sentence if len(self._told) < _MOST_TOLD else _OTHERS
        last, times = self._told.get(sentence, (-AGAIN_SECONDS, 0))
        if now - last < AGAIN_SECONDS:
            self._told[sentence] = (last, times + 1)
            return ""
        self._told[sentence] = (now, 0)
        return f"{sentence} ({times} more times meanwhile)" if times else sentence


def _why_admitted_failed(key: SiloKey, names: Collection[str]) -> str:
    if key.is_over:
        return f"the key of {key.name}, which ended on {key.until}"
    if key.name not in names:
        return f"the key of {key.name}, which is not in this run"
    return f"the key of {key.name} once more, while somebody is or just was connected with it"


def _sentence(line: str, whose: dict[str, str]) -> str:
    if found := _HANDSHAKE.search(line):
        plain = "WRONG_VERSION_NUMBER" in found.group(1) or "HTTP_REQUEST" in found.group(1)
        return "somebody who speaks plain text" if plain else "somebody who did not accept our certificate"
    found = _LOGIN.search(line)
    if found is None:
        return ""
    if found.group(1) == "RegisterNode":
        return "somebody without a key"
    mark = _mark_of(found.group(2))
    return whose.get(
        mark, f"somebody with the unknown key {mark}" if mark else "somebody with no readable key"
    )


def _mark_of(written: str) -> str:
    """The mark of a key that was written as Python writes bytes; whoever knocks can have sent anything."""
    serialization, _ = cryptography_parts()
    try:
        pem = written.encode("ascii").decode("unicode_escape").encode("latin-1")
        key = serialization.load_pem_public_key(pem)
        line = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    except Exception:
        return ""
    return key_mark(line)
