"""What travels and what it costs: codecs that turn tensors into exact, counted bits and back."""

from idiolect.codecs.codec import Codec, Encoded
from idiolect.codecs.dense import Dense
from idiolect.codecs.quantised import Linear, Stochastic
from idiolect.codecs.registry import NAMES, by_name
from idiolect.codecs.sparse import SparseTernary, TopK
from idiolect.codecs.speed import benchmark
from idiolect.codecs.streams import compress_tree, compress_tree_rows, decode_tree, encode_tree
from idiolect.core.transport import Scope

__all__ = [
    "NAMES",
    "Codec",
    "Dense",
    "Encoded",
    "Linear",
    "Scope",
    "SparseTernary",
    "Stochastic",
    "TopK",
    "benchmark",
    "by_name",
    "compress_tree",
    "compress_tree_rows",
    "decode_tree",
    "encode_tree",
]
