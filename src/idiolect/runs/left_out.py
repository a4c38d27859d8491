"""Clients that are left out of training, to see what the run's models do for those who come later."""

import zlib
from collections.abc import Sequence
from typing import Annotated, Any

import torch
from pydantic import BeforeValidator, Field
from pydantic.dataclasses import dataclass

from idiolect.core import rng
from idiolect.core.exchange import LocalWork
from idiolect.core.hyper import STRICT
from idiolect.errors import UserError, did_you_mean


def _as_texts(value: Any) -> Any:
    """A name, or a list of names, which YAML may have read as numbers."""
    if isinstance(value, str):
        return tuple(name.strip() for name in value.split(","))
    return tuple(str(name) for name in value) if isinstance(value, list | tuple) else value


Count = Annotated[int, Field(strict=True, ge=1)]
Share = Annotated[float, Field(strict=True, gt=0, lt=1)]


@dataclass(frozen=True, config=STRICT)
class NewcomerSettings:
    """Who never takes part in training, and how long each trains when it comes."""

    clients: Annotated[Count | Share | tuple[str, ...] | None, BeforeValidator(_as_texts)] = Field(
        default=None,
        description="how many are left out, which share, or their names; None: nobody",
    )
    steps: LocalWork | None = Field(
        default=None, description="their local steps, or {epochs: n}; None: those of a round"
    )

    def among(self, names: Sequence[str], seed: int) -> list[int]:
        """The places of those who are left out: the named ones, or drawn by (seed, name)."""
        if self.clients is None:
            return []
        places = self._named(names) if isinstance(self.clients, tuple) else self._drawn(names, seed)
        if len(places) >= len(names):
            raise UserError(
                f"newcomers.clients={self._shown} is not possible: it leaves nobody of {len(names)} clients "
                "to train"
            )
        return places

    def _named(self, names: Sequence[str]) -> list[int]:
        assert isinstance(self.clients, tuple)
        for name in self.clients:
            if name not in names:
                raise UserError(
                    f"newcomers.clients={self._shown} is not possible: there is no client {name!r}"
                    f"{did_you_mean(name, names)}"
                )
        return [place for place, name in enumerate(names) if name in self.clients]

    def _drawn(self, names: Sequence[str], seed: int) -> list[int]:
        """Each client has its own number of (seed, name): who else there is changes nothing of it."""
        assert isinstance(self.clients, int | float)
        count = self.clients if isinstance(self.clients, int) else max(1, round(self.clients * len(names)))
        hashes = rng.key(seed, "newcomers", torch.tensor([zlib.crc32(name.encode()) for name in names]))
        order = sorted(range(len(names)), key=lambda place: (int(hashes[place]), names[place]))
        return sorted(order[:count])

    @property
    def _shown(self) -> str:
        return ",".join(self.clients) if isinstance(self.clients, tuple) else str(self.clients)
