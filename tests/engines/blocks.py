"""Named pieces of networks: all layers of torch.nn that can train, and operations that models are made of.

A block is built for the shape of one row and keeps rows apart, but for batch normalisation. What it takes
says the axes of a row: features [c], sequences [c, l] (or [l, c]), images [c, h, w], volumes [c, d, h, w],
and codes, whole numbers [l].

Ties have probability zero: nothing that chooses among values gets equal ones whose gradients would differ.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (torch's own convention)
from torch.nn.utils import parametrizations, parametrize

from idiolect.models import add_adapters
from idiolect.models.adapters import AdapterSettings

Shape = tuple[int, ...]
Build = Callable[[Shape], nn.Module]

FEATURES, SEQUENCES, IMAGES, VOLUMES, CODES = "features", "sequences", "images", "volumes", "codes"
VOCABULARY = 12

# Blocks are built for any of these; sizes of axes differ, so that a mixed-up axis cannot hide.
SHAPES: dict[str, tuple[Shape, ...]] = {
    FEATURES: ((8,), (12,)),
    SEQUENCES: ((4, 6), (2, 8)),
    IMAGES: ((4, 6, 4), (8, 4, 6)),
    VOLUMES: ((4, 4, 2, 4),),
    CODES: ((5,),),
}


@dataclass(frozen=True)
class Block:
    """A piece of a network by name."""

    name: str
    takes: str
    build: Build = field(repr=False, compare=False)


BLOCKS: dict[str, Block] = {}


def add(takes: str, **builders: Build) -> None:
    """Register blocks; each name says what is tried."""
    for name, build in builders.items():
        full_name = f"{takes}: {name}"
        assert full_name not in BLOCKS, full_name
        BLOCKS[full_name] = Block(full_name, takes, build)


class Function(nn.Module):
    """A function as a layer."""

    def __init__(self, function: Callable[..., Tensor], *layers: nn.Module, **parameters: Tensor) -> None:
        super().__init__()
        self.function = function
        self.layers = nn.ModuleList(layers)
        self.weights = nn.ParameterDict({name: nn.Parameter(value) for name, value in parameters.items()})

    def forward(self, x: Tensor) -> Tensor:
        """What the function makes of the rows, the layers and the parameters."""
        return self.function(x, *self.layers, **dict(self.weights.items()))

    def extra_repr(self) -> str:
        """The name of the function."""
        return self.function.__name__


def operation(takes: str) -> Callable[[Callable[[Tensor], Tensor]], Callable[[Tensor], Tensor]]:
    """Register a function of rows as a block of its name."""

    def register(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        add(takes, **{function.__name__: lambda shape: Function(function)})
        return function

    return register


# --- Activations: every one that torch.nn has, so that a new one is tried by itself.

OWN_BLOCKS = {"MultiheadAttention", "Softmax2d"}  # they need more than rows of numbers, or images
ACTIVATION_OPTIONS: dict[str, dict[str, Any]] = {
    "Threshold": {"threshold": 0.1, "value": -0.3},
    "GLU": {"dim": 1},
    "Softmin": {"dim": 1},
    "Softmax": {"dim": 1},
    "LogSoftmax": {"dim": 1},
}


def _activation(name: str, **options: Any) -> Build:
    return lambda shape: getattr(nn, name)(**ACTIVATION_OPTIONS.get(name, {}), **options)


for _name in nn.modules.activation.__all__:
    if _name not in OWN_BLOCKS:
        add(FEATURES, **{_name: _activation(_name)})
for _name in ("ReLU", "ReLU6", "SELU", "ELU", "SiLU", "Hardtanh", "LeakyReLU", "Hardswish", "Threshold"):
    add(FEATURES, **{f"{_name}_in_place": _activation(_name, inplace=True)})
add(IMAGES, Softmax2d=_activation("Softmax2d"), PReLU_of_channels=lambda s: nn.PReLU(s[0]))


# --- Linear maps and what shares or parametrises their weights.


class Symmetric(nn.Module):
    """A custom parametrisation."""

    def forward(self, x: Tensor) -> Tensor:
        """The symmetric matrix of an upper triangle."""
        return x.triu() + x.triu(1).mT


def _tied(shape: Shape) -> nn.Module:
    """Two layers, one with a bias, that have one weight."""
    one, other = _linear(shape), _linear(shape, bias=False)
    other.weight = one.weight
    return nn.Sequential(one, nn.Tanh(), other)


def _with_fixed_bias(shape: Shape) -> nn.Module:
    layer = _linear(shape)
    layer.bias.requires_grad_(False)
    return layer


def _at_two_places(shape: Shape) -> nn.Module:
    layer = _linear(shape)
    return nn.Sequential(layer, nn.Tanh(), layer)


def autoencoder(x: Tensor, weight: Tensor) -> Tensor:
    """One matrix there and, transposed, back."""
    return F.linear(torch.tanh(F.linear(x, weight)), weight.mT)


def twice(x: Tensor, layer: nn.Module) -> Tensor:
    """One layer used twice."""
    return layer(torch.tanh(layer(x)))


def bilinear(x: Tensor, layer: nn.Module) -> Tensor:
    """Rows with a function of themselves."""
    return layer(x, torch.tanh(x))


def low_rank(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """An adapter beside the identity."""
    return x + 0.5 * (x @ a) @ b


def gated(x: Tensor, one: nn.Module, other: nn.Module) -> Tensor:
    """The product of two layers."""
    return torch.sigmoid(one(x)) * other(x)


def normed_weight(x: Tensor, weight: Tensor) -> Tensor:
    """Rows of the weight of unit length, by hand."""
    return F.linear(x, F.normalize(weight, dim=1))


def _linear(shape: Shape, outputs: int | None = None, **options: Any) -> nn.Linear:
    return nn.Linear(shape[-1], outputs or shape[-1], **options)


add(
    FEATURES,
    Linear=_linear,
    Linear_wider=lambda s: _linear(s, 2 * s[0]),
    Linear_without_bias=lambda s: _linear(s, bias=False),
    Bilinear=lambda s: Function(bilinear, nn.Bilinear(s[0], s[0], s[0])),
    fixed_Linear=lambda s: nn.Sequential(_linear(s).requires_grad_(False), nn.Tanh(), _linear(s)),
    fixed_bias=_with_fixed_bias,
    adapted_Linear=lambda s: add_adapters(nn.Sequential(_linear(s)), AdapterSettings(rank=2), seed=0),
    tied_parameters=_tied,
    one_layer_at_two_places=_at_two_places,
    autoencoder=lambda s: Function(autoencoder, weight=0.4 * torch.randn(5, s[0])),
    twice=lambda s: Function(twice, _linear(s)),
    low_rank=lambda s: Function(low_rank, a=torch.randn(s[0], 2) / 2, b=torch.randn(2, s[0]) / 2),
    gated=lambda s: Function(gated, _linear(s), _linear(s)),
    normed_weight=lambda s: Function(normed_weight, weight=torch.randn(s[0], s[0])),
    weight_norm=lambda s: parametrizations.weight_norm(_linear(s)),
    orthogonal_by_exponential=lambda s: parametrizations.orthogonal(_linear(s), orthogonal_map="matrix_exp"),
    orthogonal_by_cayley=lambda s: parametrizations.orthogonal(_linear(s), orthogonal_map="cayley"),
    orthogonal_by_householder=lambda s: parametrizations.orthogonal(_linear(s), orthogonal_map="householder"),
    symmetric_weight=lambda s: parametrize.register_parametrization(_linear(s), "weight", Symmetric()),
    Identity=lambda s: nn.Identity(),
    scale_of_each_feature=lambda s: Function(scaled, factor=1 + torch.randn(s[0]) / 4),
    scale_of_all_features=lambda s: Function(scaled, factor=torch.tensor(0.7)),
)
add(SEQUENCES, Linear_at_each_position=_linear)


def scaled(x: Tensor, factor: Tensor) -> Tensor:
    """Rows times a parameter."""
    return x * factor


# --- Convolutions.


def _convolution(dimensions: int, kernel: int = 3, outputs: int = 4, **options: Any) -> Build:
    layer = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dimensions - 1]
    return lambda shape: layer(shape[0], outputs, kernel, **options)


def _transposed(dimensions: int, kernel: int = 3, outputs: int = 4, **options: Any) -> Build:
    layer = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[dimensions - 1]
    return lambda shape: layer(shape[0], outputs, kernel, **options)


_OF_DIMENSIONS = ((1, SEQUENCES), (2, IMAGES), (3, VOLUMES))
for _dimensions, _takes in _OF_DIMENSIONS:
    add(
        _takes,
        Conv=_convolution(_dimensions, padding=1),
        Conv_stride=_convolution(_dimensions, stride=2, padding=1),
        Conv_dilation=_convolution(_dimensions, 2, dilation=2, padding=1),
        Conv_groups=_convolution(_dimensions, groups=2, padding=1, bias=False),
        Conv_depthwise=lambda s, d=_dimensions: _convolution(d, 2, 2 * s[0], groups=s[0])(s),
        Conv_pointwise=_convolution(_dimensions, 1),
        Conv_circular=_convolution(_dimensions, padding=1, padding_mode="circular"),
        ConvTranspose=_transposed(_dimensions, 2),
        ConvTranspose_stride=_transposed(_dimensions, 2, stride=2, output_padding=1),
        ConvTranspose_groups=_transposed(_dimensions, 2, groups=2, dilation=2),
        weight_normed_Conv=lambda s, d=_dimensions: parametrizations.weight_norm(
            _convolution(d, padding=1)(s)
        ),
    )
add(
    IMAGES,
    Conv_same=_convolution(2, padding="same"),
    Conv_reflect=_convolution(2, padding=1, padding_mode="reflect"),
    Conv_replicate=_convolution(2, padding=1, padding_mode="replicate"),
    Conv_oblong=lambda s: nn.Conv2d(s[0], 4, (1, 3), stride=(2, 1), padding=(0, 1)),
)


# --- Pooling: every one that torch.nn has.

RANDOM_POOLING = {"FractionalMaxPool2d", "FractionalMaxPool3d"}
POOLING_OPTIONS: dict[str, tuple[Any, ...]] = {"LPPool": (2, 2), "Adaptive": (2,), "": (2,)}


def unpooled(x: Tensor, pool: nn.Module, unpool: nn.Module) -> Tensor:
    """The largest values back at their places."""
    largest, places = pool(x)
    return unpool(largest, places, output_size=x.shape)


def _pooling(name: str) -> Build:
    layer, dimensions = getattr(nn, name), name[-2]
    if name.startswith("MaxUnpool"):
        pool = getattr(nn, f"MaxPool{dimensions}d")
        return lambda shape: Function(unpooled, pool(2, return_indices=True), layer(2))
    options = next(options for start, options in POOLING_OPTIONS.items() if name.startswith(start))
    if name.startswith("LPPool"):  # at zero, and only there, the root has no derivative
        return lambda shape: nn.Sequential(nn.Softplus(), layer(*options))
    return lambda shape: layer(*options)


for _name in nn.modules.pooling.__all__:
    if _name not in RANDOM_POOLING:
        add(dict(_OF_DIMENSIONS)[int(_name[-2])], **{_name: _pooling(_name)})
add(
    IMAGES,
    MaxPool_overlapping=lambda s: nn.MaxPool2d(3, stride=1, padding=1),
    MaxPool_dilated=lambda s: nn.MaxPool2d(2, stride=2, dilation=2, ceil_mode=True),
    AvgPool_padded=lambda s: nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False),
    AdaptiveAvgPool_to_one=lambda s: nn.AdaptiveAvgPool2d(1),
    AdaptiveAvgPool_uneven=lambda s: nn.AdaptiveAvgPool2d((3, 3)),
    AdaptiveMaxPool_uneven=lambda s: nn.AdaptiveMaxPool2d((3, 3)),
)


# --- Padding: every one that torch.nn has.


def _padding(name: str) -> Build:
    value = (0.7,) if name.startswith("Constant") else ()
    return lambda shape: getattr(nn, name)(1, *value)


for _name in nn.modules.padding.__all__:
    add(dict(_OF_DIMENSIONS)[int(_name[-2])], **{_name: _padding(_name)})


# --- Normalisations without running statistics.

for _takes in (FEATURES, SEQUENCES, IMAGES, VOLUMES):
    add(
        _takes,
        GroupNorm=lambda s: nn.GroupNorm(2, s[0]),
        GroupNorm_of_one_group=lambda s: nn.GroupNorm(1, s[0]),
        LayerNorm=lambda s: nn.LayerNorm(s),
        RMSNorm=lambda s: nn.RMSNorm(s),
    )
add(
    FEATURES,
    GroupNorm_without_parameters=lambda s: nn.GroupNorm(2, s[0], affine=False),
    LayerNorm_without_bias=lambda s: nn.LayerNorm(s, bias=False),
    LayerNorm_without_parameters=lambda s: nn.LayerNorm(s, elementwise_affine=False),
    GroupNorm_ReLU_in_place=lambda s: nn.Sequential(nn.GroupNorm(2, s[0]), nn.ReLU(inplace=True)),
)
add(SEQUENCES, LayerNorm_of_last_axis=lambda s: nn.LayerNorm(s[-1]), RMSNorm_last=lambda s: nn.RMSNorm(s[-1]))
for _dimensions, _takes in _OF_DIMENSIONS:
    _norm: Any = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)[_dimensions - 1]
    add(
        _takes,
        InstanceNorm=lambda s, norm=_norm: norm(s[0]),
        InstanceNorm_affine=lambda s, norm=_norm: norm(s[0], affine=True),
        LocalResponseNorm=lambda s: nn.LocalResponseNorm(3, alpha=0.5),
        GroupNorm_of_channels=lambda s: nn.GroupNorm(s[0], s[0]),
    )


# --- Embeddings.


def _bag(mode: str) -> Build:
    return lambda shape: nn.EmbeddingBag(VOCABULARY, 8, mode=mode)


def positions(x: Tensor, tokens: nn.Module, places: nn.Module) -> Tensor:
    """Embeddings of codes and of where they stand."""
    return tokens(x) + places(torch.arange(x.shape[1]))


def one_hot(x: Tensor, layer: nn.Module) -> Tensor:
    """A linear map of indicators."""
    return layer(F.one_hot(x, VOCABULARY).to(layer.weight.dtype))


add(
    CODES,
    Embedding=lambda s: nn.Embedding(VOCABULARY, 6),
    Embedding_with_padding=lambda s: nn.Embedding(VOCABULARY, 6, padding_idx=3),
    Embedding_by_frequency=lambda s: nn.Embedding(VOCABULARY, 6, scale_grad_by_freq=True),
    EmbeddingBag_sum=_bag("sum"),
    EmbeddingBag_mean=_bag("mean"),
    EmbeddingBag_max=_bag("max"),
    positions=lambda s: Function(positions, nn.Embedding(VOCABULARY, 6), nn.Embedding(s[0], 6)),
    one_hot=lambda s: Function(one_hot, nn.Linear(VOCABULARY, 6)),
)


# --- Attention.


def self_attention(x: Tensor, attention: nn.Module) -> Tensor:
    """Every position looks at all."""
    return attention(x, x, x, need_weights=False)[0]


def attention_and_its_weights(x: Tensor, attention: nn.Module) -> Tensor:
    """The weights are used too."""
    attended, weights = attention(x, torch.tanh(x), x)
    return attended + weights.mean(-1, keepdim=True)


def causal_attention(x: Tensor, layer: nn.Module) -> Tensor:
    """Every position looks at those before."""
    queries, keys, values = (part[:, None] for part in layer(x).chunk(3, dim=-1))
    return F.scaled_dot_product_attention(queries, keys, values, is_causal=True)[:, 0]


def masked_attention(x: Tensor, layer: nn.Module) -> Tensor:
    """A mask that is made in the forward pass."""
    length = x.shape[1]
    mask = torch.ones(length, length).tril(1).bool()
    queries, keys, values = (part[:, None] for part in layer(x).chunk(3, dim=-1))
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)[:, 0]


def attention_by_hand(x: Tensor, layer: nn.Module) -> Tensor:
    """Products and a softmax."""
    queries, keys, values = layer(x).chunk(3, dim=-1)
    return torch.softmax(queries @ keys.mT / 2, -1) @ values


def decoder(x: Tensor, layer: nn.Module) -> Tensor:
    """A sequence that looks at itself and at another."""
    return layer(x, torch.tanh(x))


def _three(shape: Shape) -> nn.Module:
    return nn.Linear(shape[-1], 3 * shape[-1])


_SMALL: dict[str, Any] = {"dim_feedforward": 5, "dropout": 0.0, "batch_first": True}


def _encoder_layer(shape: Shape, **options: Any) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(shape[-1], 2, **_SMALL, **options)


def _attention(shape: Shape, **options: Any) -> nn.Module:
    return nn.MultiheadAttention(shape[-1], 2, batch_first=True, **options)


add(
    SEQUENCES,
    MultiheadAttention=lambda s: Function(self_attention, _attention(s)),
    MultiheadAttention_weights=lambda s: Function(attention_and_its_weights, _attention(s)),
    MultiheadAttention_bias_kv=lambda s: Function(self_attention, _attention(s, add_bias_kv=True)),
    causal_attention=lambda s: Function(causal_attention, _three(s)),
    masked_attention=lambda s: Function(masked_attention, _three(s)),
    attention_by_hand=lambda s: Function(attention_by_hand, _three(s)),
    TransformerEncoderLayer=_encoder_layer,
    TransformerEncoderLayer_norm_first=lambda s: _encoder_layer(s, norm_first=True, activation="gelu"),
    TransformerEncoder=lambda s: nn.TransformerEncoder(_encoder_layer(s), 1, enable_nested_tensor=False),
    TransformerDecoderLayer=lambda s: Function(decoder, nn.TransformerDecoderLayer(s[-1], 2, **_SMALL)),
    TransformerDecoder=lambda s: Function(
        decoder, nn.TransformerDecoder(nn.TransformerDecoderLayer(s[-1], 2, **_SMALL), 1)
    ),
    Transformer=lambda s: Function(decoder, nn.Transformer(s[-1], 2, 1, 1, **_SMALL)),
)


# --- What keeps statistics, and what draws noise.


class FunctionalDropout(nn.Module):
    """Dropout that is no layer."""

    def forward(self, x: Tensor) -> Tensor:
        """As much as the mode says."""
        return F.dropout(x, 0.3, self.training)


def positions_first(x: Tensor, layer: nn.Module) -> Tensor:
    """Rows along the second axis."""
    return layer(x.transpose(0, 1)).transpose(0, 1)


def positions_as_rows(x: Tensor, layer: nn.Module) -> Tensor:
    """Every position of every row by itself."""
    return layer(x.reshape(-1, x.shape[-1])).reshape(x.shape)


def _tracked(layer: type[nn.Module]) -> Build:
    return lambda shape: layer(shape[0], track_running_stats=True, affine=True)


add(
    FEATURES,
    BatchNorm=lambda s: nn.BatchNorm1d(s[0]),
    BatchNorm_cumulative=lambda s: nn.BatchNorm1d(s[0], momentum=None),
    BatchNorm_without_parameters=lambda s: nn.BatchNorm1d(s[0], affine=False),
    BatchNorm_between=lambda s: nn.Sequential(_linear(s), nn.BatchNorm1d(s[0]), nn.ReLU(), nn.Dropout(0.2)),
    SyncBatchNorm=lambda s: nn.SyncBatchNorm(s[0]),
    Dropout=lambda s: nn.Dropout(0.3),
    Dropout_in_place=lambda s: nn.Sequential(_linear(s), nn.Dropout(0.4, inplace=True)),
    AlphaDropout=lambda s: nn.AlphaDropout(0.3),
    FeatureAlphaDropout=lambda s: nn.FeatureAlphaDropout(0.3),
    functional_dropout=lambda s: FunctionalDropout(),
)
add(
    SEQUENCES,
    BatchNorm=lambda s: nn.BatchNorm1d(s[0]),
    BatchNorm_of_positions=lambda s: Function(positions_as_rows, nn.BatchNorm1d(s[-1])),
    InstanceNorm_tracked=_tracked(nn.InstanceNorm1d),
    Dropout1d=lambda s: nn.Dropout1d(0.3),
    FeatureAlphaDropout=lambda s: nn.FeatureAlphaDropout(0.3),
    Dropout_positions_first=lambda s: Function(positions_first, nn.Dropout(0.3)),
    MultiheadAttention_dropout=lambda s: Function(self_attention, _attention(s, dropout=0.3)),
    MultiheadAttention_weights_dropout=lambda s: Function(
        attention_and_its_weights, _attention(s, dropout=0.3)
    ),
    TransformerEncoderLayer_dropout=lambda s: nn.TransformerEncoderLayer(s[-1], 2, 5, 0.2, batch_first=True),
    TransformerEncoderLayer_positions_first=lambda s: Function(
        positions_first, nn.TransformerEncoderLayer(s[-1], 2, 5, 0.2)
    ),
)
add(
    IMAGES,
    BatchNorm=lambda s: nn.BatchNorm2d(s[0]),
    BatchNorm_cumulative=lambda s: nn.BatchNorm2d(s[0], momentum=None, affine=False),
    BatchNorm_between=lambda s: nn.Sequential(
        nn.Conv2d(s[0], 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True)
    ),
    InstanceNorm_tracked=_tracked(nn.InstanceNorm2d),
    Dropout2d=lambda s: nn.Dropout2d(0.3),
)
add(
    VOLUMES,
    BatchNorm=lambda s: nn.BatchNorm3d(s[0]),
    InstanceNorm_tracked=_tracked(nn.InstanceNorm3d),
    Dropout3d=lambda s: nn.Dropout3d(0.3),
)


# --- Recurrence.


def all_states(x: Tensor, layer: nn.Module) -> Tensor:
    """The states at all positions."""
    return layer(x)[0]


def last_state(x: Tensor, layer: nn.Module) -> Tensor:
    """The final hidden state."""
    state = layer(x)[1]
    return (state[0] if isinstance(state, tuple) else state)[-1]


def stepped(x: Tensor, cell: nn.Module) -> Tensor:
    """A cell at one position after the other."""
    state = None
    for position in x.unbind(1):
        state = cell(position, state)
    return state[0] if isinstance(state, tuple) else state


for _name in ("RNN", "GRU", "LSTM"):
    _cell, _layer = getattr(nn, f"{_name}Cell"), getattr(nn, _name)
    add(
        SEQUENCES,
        **{
            f"{_name}Cell": lambda s, cell=_cell: Function(stepped, cell(s[-1], 5)),
            _name: lambda s, layer=_layer: Function(all_states, layer(s[-1], s[-1], batch_first=True)),
            f"{_name}_both_ways": lambda s, layer=_layer: Function(
                all_states, layer(s[-1], 3, batch_first=True, bidirectional=True)
            ),
            f"{_name}_of_two_layers": lambda s, layer=_layer: Function(
                last_state, layer(s[-1], 3, num_layers=2, batch_first=True)
            ),
        },
    )
add(
    SEQUENCES,
    LSTM_projected=lambda s: Function(all_states, nn.LSTM(s[-1], 5, proj_size=3, batch_first=True)),
    RNN_relu=lambda s: Function(all_states, nn.RNN(s[-1], 5, nonlinearity="relu", batch_first=True)),
)


# --- Shapes: what torch.nn has, and what models are written with.

add(
    IMAGES,
    PixelShuffle=lambda s: nn.PixelShuffle(2),
    PixelUnshuffle=lambda s: nn.PixelUnshuffle(2),
    ChannelShuffle=lambda s: nn.ChannelShuffle(2),
    Unfold=lambda s: nn.Unfold(3, padding=1, stride=2),
    Unfold_and_Fold=lambda s: nn.Sequential(nn.Unfold(2), nn.Fold(s[1:], 2)),
    Upsample_nearest=lambda s: nn.Upsample(scale_factor=2),
    Upsample_bilinear=lambda s: nn.Upsample(scale_factor=2, mode="bilinear"),
    Upsample_bicubic=lambda s: nn.Upsample(size=(5, 7), mode="bicubic", align_corners=True),
    UpsamplingNearest2d=lambda s: nn.UpsamplingNearest2d(scale_factor=2),
    UpsamplingBilinear2d=lambda s: nn.UpsamplingBilinear2d(scale_factor=2),
    Flatten=lambda s: nn.Flatten(),
)
add(
    SEQUENCES,
    Upsample_linear=lambda s: nn.Upsample(scale_factor=2, mode="linear"),
    Unflatten=lambda s: nn.Unflatten(1, (2, s[0] // 2)),
)
add(VOLUMES, Upsample_trilinear=lambda s: nn.Upsample(scale_factor=2, mode="trilinear"))


@operation(IMAGES)
def interpolate_antialiased(x: Tensor) -> Tensor:
    return F.interpolate(x, size=(3, 3), mode="bilinear", antialias=True)


@operation(IMAGES)
def interpolate_area(x: Tensor) -> Tensor:
    return F.interpolate(x, size=(3, 3), mode="area")


@operation(IMAGES)
def grid_sample(x: Tensor) -> Tensor:
    """At places that depend on the image."""
    rows, columns = torch.tanh(x[:, 0]), torch.tanh(x[:, 1])
    return F.grid_sample(x, torch.stack([rows, columns], -1), align_corners=False)


@operation(IMAGES)
def channels_last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1).contiguous().view(x.shape[0], -1)


@operation(FEATURES)
def expand(x: Tensor) -> Tensor:
    """Each row against itself, without memory for it."""
    square = x[:, :, None].expand(-1, -1, x.shape[1])
    return torch.tanh(square - 0.5 * square.mT).sum(1)


@operation(FEATURES)
def stack_cat_chunk(x: Tensor) -> Tensor:
    one, other = x.chunk(2, dim=1)
    return torch.cat([torch.stack([one, other], 2).flatten(1), one * other], 1)


@operation(FEATURES)
def roll_flip(x: Tensor) -> Tensor:
    return x.roll(3, 1) * x.flip(1)


@operation(FEATURES)
def pad(x: Tensor) -> Tensor:
    return F.pad(x, (2, 1), value=0.4) * 1.5


@operation(FEATURES)
def split_unbind(x: Tensor) -> Tensor:
    first, *_, last = x.unbind(1)
    return torch.cat([x.split(2, 1)[1], (first * last)[:, None]], 1)


@operation(FEATURES)
def repeat_interleave(x: Tensor) -> Tensor:
    return x.repeat_interleave(2, 1) * x.repeat(1, 2)


@operation(FEATURES)
def diagonals(x: Tensor) -> Tensor:
    return torch.diag_embed(x).cumsum(2).diagonal(1, 1, 2)


@operation(SEQUENCES)
def transpose(x: Tensor) -> Tensor:
    return x.mT.contiguous()


@operation(SEQUENCES)
def strided_view(x: Tensor) -> Tensor:
    return x[:, ::2, 1:].flatten(1)


@operation(SEQUENCES)
def windows(x: Tensor) -> Tensor:
    return x.unfold(2, 3, 2).sum(-1)


@operation(SEQUENCES)
def einsum(x: Tensor) -> Tensor:
    return torch.einsum("rij,rkj->rik", x, torch.tanh(x))


@operation(SEQUENCES)
def batched_products(x: Tensor) -> Tensor:
    return torch.bmm(x, x.mT) @ x / 4


@operation(SEQUENCES)
def mean_and_spread(x: Tensor) -> Tensor:
    return torch.cat([x.mean(2), x.std(2), x.var(1, unbiased=False)], 1)


@operation(SEQUENCES)
def extremes(x: Tensor) -> Tensor:
    return torch.cat([x.amax(2), x.min(2).values, x.max(1).values, x.median(2).values], 1)


@operation(SEQUENCES)
def norms(x: Tensor) -> Tensor:
    return torch.cat([x.norm(dim=2), x.norm(p=1, dim=1), torch.linalg.vector_norm(x, 3, dim=2)], 1)


@operation(SEQUENCES)
def distances(x: Tensor) -> Tensor:
    return torch.cdist(x, torch.tanh(x) + 1)


# --- Sums along axes, choices, orders.


@operation(FEATURES)
def cumsum(x: Tensor) -> Tensor:
    return x.cumsum(1) / x.shape[1]


@operation(FEATURES)
def cumprod(x: Tensor) -> Tensor:
    return torch.tanh(x).cumprod(1)


@operation(FEATURES)
def logcumsumexp(x: Tensor) -> Tensor:
    return x.logcumsumexp(1) - x.logsumexp(1, keepdim=True)


@operation(FEATURES)
def cummax(x: Tensor) -> Tensor:
    return x.cummax(1).values


@operation(FEATURES)
def sort(x: Tensor) -> Tensor:
    return x.sort(1).values


@operation(FEATURES)
def topk(x: Tensor) -> Tensor:
    values, places = x.topk(3, dim=1)
    return torch.cat([values, x.gather(1, (places + 1) % x.shape[1])], 1)


@operation(FEATURES)
def kthvalue(x: Tensor) -> Tensor:
    return x - x.kthvalue(3, dim=1, keepdim=True).values


@operation(FEATURES)
def gather_the_largest(x: Tensor) -> Tensor:
    return x * x.gather(1, x.abs().argmax(1, keepdim=True))


@operation(FEATURES)
def fixed_order(x: Tensor) -> Tensor:
    return x[:, [2, 0, 1, 2]] * x.index_select(1, torch.tensor([1, 1, 0, 3]))


@operation(FEATURES)
def scatter_add(x: Tensor) -> Tensor:
    groups = (torch.arange(x.shape[1]) % 3).expand_as(x)
    return torch.zeros_like(x[:, :3]).scatter_add(1, groups, x)


@operation(FEATURES)
def index_add(x: Tensor) -> Tensor:
    return x.index_add(1, torch.tensor([0, 0, 2]), x[:, 3:6] * 2)


@operation(FEATURES)
def masked(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, torch.exp(x) - 1).masked_fill(x > 1, 0.5)


@operation(FEATURES)
def clamped(x: Tensor) -> Tensor:
    return x.clamp(-0.8, 0.6) + torch.maximum(x, -0.5 * x)


@operation(FEATURES)
def straight_through(x: Tensor) -> Tensor:
    """Rounded values with the gradient of unrounded ones."""
    return x + ((4 * x).round() / 4 - x).detach()


@operation(FEATURES)
def without_gradient(x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = x.square().mean(1, keepdim=True)
    return x / (1 + scale)


# --- Fourier transforms and complex values between.


@operation(FEATURES)
def fourier_and_back(x: Tensor) -> Tensor:
    spectrum = torch.fft.rfft(x, dim=1)
    return torch.fft.irfft(spectrum * torch.linspace(1, 0.2, spectrum.shape[1]), n=x.shape[1], dim=1)


@operation(FEATURES)
def spectrum(x: Tensor) -> Tensor:
    return torch.view_as_real(torch.fft.fft(x, dim=1, norm="ortho")).flatten(1)


@operation(IMAGES)
def fourier_of_images(x: Tensor) -> Tensor:
    return torch.fft.fft2(x, norm="ortho").abs()


@operation(FEATURES)
def complex_phases(x: Tensor) -> Tensor:
    one, other = x.chunk(2, dim=1)
    turned = torch.complex(one, other) * torch.polar(torch.ones_like(one), other)
    return torch.cat([turned.real, turned.conj().imag, (turned * turned.conj()).real], 1)


# --- Matrices.


@operation(SEQUENCES)
def solved(x: Tensor) -> Tensor:
    matrix = torch.eye(x.shape[1], dtype=x.dtype) + x @ x.mT / 8
    return torch.linalg.solve(matrix, x)


@operation(SEQUENCES)
def cholesky(x: Tensor) -> Tensor:
    return torch.linalg.cholesky(torch.eye(x.shape[1], dtype=x.dtype) + x @ x.mT / 8)


@operation(SEQUENCES)
def determinant(x: Tensor) -> Tensor:
    matrix = torch.eye(x.shape[1], dtype=x.dtype) + x @ x.mT / 8
    return torch.linalg.slogdet(matrix).logabsdet[:, None] * x[:, 0]


@operation(SEQUENCES)
def inverse(x: Tensor) -> Tensor:
    return torch.linalg.inv(torch.eye(x.shape[1], dtype=x.dtype) + x @ x.mT / 8)


# --- Distances.


def similarity(x: Tensor, prototypes: Tensor) -> Tensor:
    """To each prototype, by angle."""
    return nn.CosineSimilarity(dim=2)(x[:, None], prototypes)


add(
    FEATURES,
    CosineSimilarity=lambda s: Function(similarity_of_halves, nn.CosineSimilarity(dim=1)),
    PairwiseDistance=lambda s: Function(similarity_of_halves, nn.PairwiseDistance()),
    prototypes=lambda s: Function(similarity, prototypes=torch.randn(3, s[0])),
)


def similarity_of_halves(x: Tensor, measure: nn.Module) -> Tensor:
    """One half of a row against the other, beside the row."""
    one, other = x.chunk(2, dim=1)
    return torch.cat([x, measure(one, other)[:, None]], 1)


# --- Operations that write into memory that something else reads.


@operation(FEATURES)
def add_in_place(x: Tensor) -> Tensor:
    y = 2 * x
    y += torch.tanh(x)
    return y * torch.sigmoid(x)


@operation(FEATURES)
def multiply_in_place(x: Tensor) -> Tensor:
    y = x + 1
    y.mul_(2).add_(x)
    return y


@operation(FEATURES)
def written_over_its_input(x: Tensor) -> Tensor:
    x += 0.25
    return torch.tanh(x)


@operation(FEATURES)
def same_recipe_before_and_after_a_write(x: Tensor) -> Tensor:
    """Two equal calls whose results differ, because their argument was changed between them."""
    y = x * 1.0
    before = y.sum(1, keepdim=True)
    y.mul_(0.5)
    after = y.sum(1, keepdim=True)
    return torch.cat([x * before, x + after], 1)


@operation(FEATURES)
def view_before_a_write(x: Tensor) -> Tensor:
    """A view shows what is written later."""
    y = x * 1.0
    view, copy = y[:, :3], y[:, :3] * 1.0
    y += 1
    return torch.cat([view * x[:, :3], copy], 1)


@operation(FEATURES)
def write_through_a_view(x: Tensor) -> Tensor:
    y = x * 1.0
    total = y.sum(1, keepdim=True)
    y[:, 1:3].mul_(3)
    return torch.cat([y, total, y.sum(1, keepdim=True)], 1)


@operation(FEATURES)
def assigned_slices(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    y[:, 1:] = x[:, :-1]
    y[:, 0] = x[:, -1] * 2
    return y + x


@operation(FEATURES)
def assigned_to_new_memory(x: Tensor) -> Tensor:
    y = x.new_zeros(x.shape[0], 4)
    y[:, ::2] = x[:, :2]
    return y


@operation(FEATURES)
def assigned_to_zeros(x: Tensor) -> Tensor:
    """Memory that does not come from the rows."""
    y = torch.zeros(x.shape[0], 4, dtype=x.dtype)
    y[:, ::2] = x[:, :2]
    return y


@operation(FEATURES)
def assigned_by_index(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, torch.tensor([0, 2])] = torch.tanh(x[:, 1:3])
    return y.index_put((torch.arange(x.shape[0]), torch.zeros(x.shape[0], dtype=torch.int64)), x[:, 3])


@operation(FEATURES)
def filled_in_place(x: Tensor) -> Tensor:
    y = x * 1.0
    y[:, 2].fill_(0.3)
    y.clamp_(-1, 1)
    return y * x


@operation(FEATURES)
def accumulated_in_a_loop(x: Tensor) -> Tensor:
    total = torch.zeros_like(x)
    for shift in range(3):
        total += torch.tanh(x.roll(shift, 1))
        total *= 0.9
    return total


@operation(FEATURES)
def written_through_transposition(x: Tensor) -> Tensor:
    y = x.unflatten(1, (2, -1)) * 1.0
    first = y.sum(2)
    y.mT.add_(0.5)
    return torch.cat([y.flatten(1), first, y.sum(2)], 1)


@operation(FEATURES)
def masked_in_place(x: Tensor) -> Tensor:
    y = x * 2
    y.masked_fill_(x > 0.5, 0.1)
    y[:, :2] += x[:, 2:4]
    return y


@operation(FEATURES)
def written_into_a_sum(x: Tensor) -> Tensor:
    """A result of which one copy is changed, and the other is needed as it was."""
    y = torch.sigmoid(x)
    z = y + x
    total = z.sum(1, keepdim=True)
    z -= 2 * y
    return torch.relu_(z * 2) * y + total


# --- Operations that depend on the values of rows: nothing can run them for many clients at once.


@operation(FEATURES)
def branch_on_values(x: Tensor) -> Tensor:
    return torch.tanh(x) if x.detach().isfinite().all() else x


@operation(FEATURES)
def chosen_by_a_mask(x: Tensor) -> Tensor:
    """As many as are positive."""
    y = x * 1.0
    y[x > 0] = x[x > 0].square()
    return y


@operation(FEATURES)
def number_of_values(x: Tensor) -> Tensor:
    return x * (1 + 0 * float(x.detach().sum()))


# --- Functions with a derivative of their own.


class Clipped(torch.autograd.Function):
    """The identity with a bounded derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        """As it is."""
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        """Nothing is needed."""

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        """Between -0.1 and 0.1."""
        return slope.clamp(-0.1, 0.1)


@operation(FEATURES)
def own_derivative(x: Tensor) -> Tensor:
    return Clipped.apply(torch.tanh(x))
