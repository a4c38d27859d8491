"""The section that chooses codecs, as in `codec.up=ternary codec.down=ternary codec.keep=0.3`."""

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from idiolect.codecs.codec import Codec
from idiolect.codecs.compressed import Compressed
from idiolect.codecs.feedback import Channel
from idiolect.codecs.registry import by_name
from idiolect.core.hyper import STRICT
from idiolect.core.method import Method
from idiolect.core.transport import Scope
from idiolect.errors import UserError

_TAKEN_BY = {"keep": ("ternary", "topk"), "bits": ("stochastic",)}


@dataclass(frozen=True, kw_only=True, config=STRICT)
class CodecConfig:
    """What compresses uploads and downlinks; nothing by default."""

    up: str | None = Field(
        default=None, description="codec of what clients send; see `idiolect.codecs.NAMES`"
    )
    down: str | None = Field(default=None, description="codec of what the server sends to all")
    keep: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None, description="fraction of the entries that ternary and topk send; 0.3 by default"
    )
    bits: Annotated[int, Field(ge=2, le=16)] | None = Field(
        default=None, description="bits for each entry of stochastic; 8 by default"
    )
    scope: Scope = Field(default="per_tensor", description="compress each tensor, or all as one vector")

    def wrap(self, method: Method) -> Method:
        """The method with its messages compressed; the method itself if no codec is named."""
        self._refuse_idle_options()
        if self.up is None and self.down is None:
            return method
        if method.own_codec() is not None:
            raise UserError(
                f"codec cannot be used with method={method.name}, which compresses by itself: set "
                "method.keep (null: no compression), or leave out codec.up and codec.down"
            )
        return Compressed(method, self._channel(self.up), self._channel(self.down))

    def _channel(self, name: str | None) -> Channel:
        return Channel(None if name is None else self._codec(name), self.scope)

    def _codec(self, name: str) -> Codec:
        options = {option: value for option, value in self._given().items() if name in _TAKEN_BY[option]}
        return by_name(name, **options)

    def _given(self) -> dict[str, float | int]:
        options = {"keep": self.keep, "bits": self.bits}
        return {option: value for option, value in options.items() if value is not None}

    def _refuse_idle_options(self) -> None:
        for option, value in self._given().items():
            takers = _TAKEN_BY[option]
            if self.up not in takers and self.down not in takers:
                raise UserError(
                    f"codec.{option}={value:g} has no effect: it is an option of {' and '.join(takers)}, "
                    f"and codec.up={self.up}, codec.down={self.down}"
                )


def with_own_codec(method: Method) -> Method:
    """The method through the codec that its paper has, or as it is if there is none."""
    own = method.own_codec()
    if own is None:
        return method
    channel = Channel(by_name(own.name, **own.options), own.scope)
    return Compressed(method, channel, channel, own.predicts_with)
