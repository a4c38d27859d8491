"""What tells a question from any other: what is asked for, not how it travelled or was spelt.

A silo answers the same question again, and no other in its place. In a secure sum silos sign their keys for
the question that all of them were asked: a coordinator that asks others for what it can foresee, by a model
on which training stands still or by less work, would see in the sum what is left, a single upload.
"""

from collections.abc import Mapping
from typing import Any

from idiolect.core.around import innermost
from idiolect.core.exchange import Exchange, Message
from idiolect.silo.wire import describe_object, digest


def work_question(exchange: Exchange, header: Mapping[str, Any], down: Message) -> str:
    """Of one exchange in one round, with this message."""
    return digest(_asked(exchange, header), {"down": down})


def work_in_common(exchange: Exchange, header: Mapping[str, Any], down: Message) -> str:
    """What of it all silos are asked alike: all, but for a message that each has of its own."""
    return digest(_asked(exchange, header), {} if exchange.personal_down else {"down": down})


def exchange_question(exchange: Exchange) -> str:
    """Of an exchange in whatever round."""
    return digest({"exchange": describe_object(innermost(exchange))})


def evaluation_in_common(done: int, brief: Message, *, is_personal: bool) -> str:
    """What all silos are asked alike when they evaluate models after so many rounds."""
    return digest({"round": done}, {} if is_personal else {"brief": brief})


def _asked(exchange: Exchange, header: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "exchange": describe_object(innermost(exchange)),
        "round": header["round"],
        "place": header["place"],
        "work": float(header["work"]),
        "clock_steps": header["clock_steps"],
    }
