"""Shakespeare's lines by speaking role, as sequences of characters."""

import re
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from idiolect.core import rng
from idiolect.core.task import Task
from idiolect.data.federation import Federation
from idiolect.data.reading import read_table
from idiolect.data.sources.downloads import RemoteFile, find, obtain
from idiolect.data.splits import DEFAULT_FRACTIONS, Fractions, split_clients
from idiolect.errors import UserError

_TINY = RemoteFile(
    "input.txt",
    "https://raw.githubusercontent.com/karpathy/char-rnn/6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e/"
    "data/tinyshakespeare/input.txt",
    "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
)


def shakespeare(
    *,
    seed: int,
    data_dir: str | Path | None = None,
    clients: int | None = None,
    minimum_characters: int = 1000,
    length: int = 80,
    stride: int = 20,
    fractions: Fractions = DEFAULT_FRACTIONS,
) -> Federation:
    """Shakespeare by speaking role: the next character after 80.

    A row is `length` characters and the one that follows; rows start every `stride` characters of what a
    role says, in the order of the play. The split is by time: first training, then validation, then test.
    Roles with fewer than minimum_characters (and those with too few for three rows) are left out;
    clients: take that many of the roles, drawn at random.

    A data directory may hold all plays (shakespeare_roles/shakespeare_roles.csv.gz, a client for each
    role of each play); the download is an excerpt of 1.1 million characters, a client for each role.
    """
    for name, value in (("length", length), ("stride", stride)):
        if value < 1:
            raise UserError(f"{name}={value} must be at least 1")
    roles = _roles(data_dir)
    characters = sorted(set().union(*roles.values()))
    codes = {c: i for i, c in enumerate(characters)}
    needed = max(minimum_characters, length + 1 + 2 * stride)
    names = sorted(role for role, spoken in roles.items() if len(spoken) >= needed)
    if clients is not None:
        if not 1 <= clients <= len(names):
            raise UserError(
                f"clients={clients} must be between 1 and {len(names)}, the roles that are long enough"
            )
        order = rng.permutation(rng.key(seed, "roles"), len(names))
        names = sorted(names[i] for i in order[:clients].tolist())
    if not names:
        raise UserError(f"no role has {needed} characters; lower minimum_characters, length or stride")
    windows = [_windows([codes[c] for c in roles[name]], length + 1, stride) for name in names]
    sizes = [len(w) for w in windows]
    together = torch.as_tensor(np.concatenate(windows))
    rows = list(torch.split(torch.arange(len(together)), sizes))
    split = split_clients(rows, names, seed=seed, fractions=fractions, shuffle=False)
    return Federation(
        inputs=together[:, :-1].contiguous(),
        targets=together[:, -1].contiguous(),
        task=Task("next-character", len(characters)),
        names=tuple(names),
        train=split.train,
        validation=split.validation,
        test=split.test,
        class_names=tuple(characters),
    )


def _roles(data_dir: str | Path | None) -> dict[str, str]:
    """All that each role says, line by line."""
    if path := find("shakespeare_roles", "shakespeare_roles.csv.gz", data_dir):
        return _roles_of_plays(path)
    spoken = obtain(_TINY, "shakespeare", data_dir).read_text()
    speeches = pd.DataFrame(re.findall(r"^([^\n:]+):\n(.+?)(?:\n\n|\Z)", spoken, re.MULTILINE | re.DOTALL))
    return _joined(speeches[0], speeches[1])


@lru_cache(maxsize=1)  # reading takes seconds, and a process may play many runs
def _roles_of_plays(path: Path) -> dict[str, str]:
    lines = read_table(path).astype({"text": str})
    return _joined(lines["play"] + "/" + lines["role"], lines["text"])


def _joined(roles: pd.Series, lines: pd.Series) -> dict[str, str]:
    return {str(role): "\n".join(own) for role, own in lines.groupby(roles)}


def _windows(codes: list[int], width: int, stride: int) -> np.ndarray:
    return np.lib.stride_tricks.sliding_window_view(np.array(codes, dtype=np.int64), width)[::stride]
