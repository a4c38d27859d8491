"""The section that chooses codecs, as in `codec.up=ternary codec.down=ternary codec.keep=0.3`.

`keep` and `bits` are for both directions; options of one are given with its name, as in
`codec.up=my_package.codecs:Rounded codec.up.digits=3`, in YAML `up: {name: ..., digits: 3}`.
"""

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from idiolect.codecs.codec import Codec
from idiolect.codecs.compressed import Compressed
from idiolect.codecs.feedback import Channel
from idiolect.codecs.registry import CATALOGUE, NAMES, by_name
from idiolect.core.hyper import STRICT
from idiolect.core.method import Method
from idiolect.core.transport import Scope
from idiolect.errors import UserError
from idiolect.plugins import Named, chosen, option_names


@dataclass(frozen=True, kw_only=True, config=STRICT)
class CodecConfig:
    """What compresses uploads and downlinks; nothing by default."""

    up: Named | None = Field(
        default=None,
        description="codec of what clients send: one of `idiolect.codecs.NAMES` or package.module:Class",
    )
    down: Named | None = Field(default=None, description="codec of what the server sends to all")
    keep: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None, description="fraction of the entries that ternary (0.3 by default) and topk (0.1) send"
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
        up, down = self._codec(self.up, "codec.up"), self._codec(self.down, "codec.down")
        return Compressed(method, Channel(up, self.scope), Channel(down, self.scope))

    def _codec(self, codec: Named | None, setting: str) -> Codec | None:
        if codec is None:
            return None
        name, options = chosen(codec)
        taken = _options_of(codec, setting)
        return by_name(name, **{k: v for k, v in self._given().items() if k in taken} | options)

    def _given(self) -> dict[str, float | int]:
        options = {"keep": self.keep, "bits": self.bits}
        return {option: value for option, value in options.items() if value is not None}

    def _refuse_idle_options(self) -> None:
        taken = [*_options_of(self.up, "codec.up"), *_options_of(self.down, "codec.down")]
        for option, value in self._given().items():
            if option not in taken:
                takers = [name for name in NAMES if option in _options_of(name, "")]
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


def _options_of(codec: Named | None, setting: str) -> list[str]:
    return [] if codec is None else option_names(CATALOGUE.find(chosen(codec)[0], setting))
