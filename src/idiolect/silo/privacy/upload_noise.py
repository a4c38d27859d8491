"""The noise that a silo adds to its upload, where the silo is to be hidden as a whole.

The sum of uploads, of which each is no longer than C, is to have noise of the variance σ² C². The coordinator
adds none of it, since it could take it off again. With secure sums, which are over t silos at least, each
adds its share, of the variance σ² C² / t: any sum that can be opened has as much as was agreed, or more. If k
silos tell the coordinator theirs, (t - k) / t of the variance is left. Without secure sums the coordinator
sees each upload, so each has all of the noise.
"""

import math

from idiolect.core import rng, tree
from idiolect.core.exchange import Message
from idiolect.errors import UserError
from idiolect.privacy.settings import SiloPrivacy
from idiolect.privacy.silo_private import with_noise
from idiolect.secure.fixed_point import FixedPoint

_GRAINS = 2**10  # of fixed point, that noise is larger than at least: then its digits make no difference


def share_of_noise(privacy: SiloPrivacy, silos: int) -> float:
    """The standard deviation of one silo's noise, of as many as there are in a sum at least."""
    return privacy.multiplier * privacy.clip / math.sqrt(silos)


def require_fine(deviation: float, digits: FixedPoint) -> None:
    """Refuse numbers with so few digits that rounded noise is another than what is accounted for."""
    if 0 < deviation < _GRAINS * 2.0**-digits.fraction_bits:
        raise UserError(
            f"secure.range={digits.largest:g} leaves too few digits for noise of {deviation:.3g}: lower it, "
            "or raise privacy.noise or privacy.clip"
        )


def noised(upload: Message, deviation: float) -> Message:
    """An upload with noise in float64, of which fewer digits are told."""
    precise = tree.map_tree(lambda leaf: leaf.double(), upload)
    return with_noise(precise, deviation, rng.key(0, "upload noise"))


def as_told(noisy: Message, like: Message) -> Message:
    """The same in the precision of uploads."""
    return tree.map_tree(lambda leaf, plain: leaf.to(plain.dtype), noisy, like)
