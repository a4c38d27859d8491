"""Models of sequences of codes [length], such as characters or words, or of numbers [length, features]."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (torch's own convention)

from idiolect.core.autodiff import has_kernels
from idiolect.data.federation import Federation
from idiolect.errors import UserError
from idiolect.models.fitting import codes_of, one_input, require_counts


class CharLSTM(nn.Module):
    """The next character after a sequence: embedding, LSTM layers, linear read-out of the last state.

    The LSTM's own equations in tensor operations, because torch's kernel has no batching rule for `vmap`:
    (i, f, g, o) = W x + U h + b;  c = σ(f) c + σ(i) tanh(g);  h = σ(o) tanh(c).
    One client alone takes the kernel: over 80 characters in a half to a seventh of the time.
    """

    def __init__(self, characters: int, outputs: int, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(characters, embedding))
        self.input_maps = nn.ModuleList(
            nn.Linear(embedding if layer == 0 else hidden, 4 * hidden) for layer in range(layers)
        )
        self.state_maps = nn.ModuleList(nn.Linear(hidden, 4 * hidden, bias=False) for _ in range(layers))
        self.output = nn.Linear(hidden, outputs)
        _initialise_uniformly(hidden, self.input_maps, self.state_maps)

    def forward(self, codes: Tensor) -> Tensor:
        """int64[rows, length] -> [rows, outputs]."""
        sequence = F.embedding(codes, self.embedding)
        if self.is_fast_alone and has_kernels():
            sequence = self._all_layers(sequence)
        else:
            for input_map, state_map in zip(self.input_maps, self.state_maps, strict=True):
                sequence = self._layer(input_map(sequence), state_map)
        return self.output(sequence[:, -1])

    @property
    def is_fast_alone(self) -> bool:
        """Whether torch's kernel can be taken: it asks for weights, and knows nothing of adapters."""
        return all(type(layer) is nn.Linear for layer in (*self.input_maps, *self.state_maps))

    def _all_layers(self, sequence: Tensor) -> Tensor:
        """All states of the last layer, by torch's kernel."""
        weights: list[Tensor] = []
        for own, of_state in zip(self.input_maps, self.state_maps, strict=True):
            assert isinstance(own, nn.Linear)
            assert isinstance(of_state, nn.Linear)
            # The kernel has a second bias, with U h.
            weights += own.weight, of_state.weight, own.bias, torch.zeros_like(own.bias)
        layers = len(self.input_maps)
        start = sequence.new_zeros(layers, len(sequence), self.output.in_features)
        states, *_ = torch.lstm(
            sequence, (start, start), weights, True, layers, 0.0, self.training, False, True
        )
        return states

    @staticmethod
    def _layer(driven: Tensor, state_map: nn.Module) -> Tensor:
        """All states of one layer, from W x + b at every position [rows, length, 4 hidden]."""
        state = cell = torch.zeros_like(driven[:, 0, : driven.shape[-1] // 4])
        states = []
        for drive in driven.unbind(1):  # the derivative of an index would fill a whole sequence each time
            i, f, g, o = (drive + state_map(state)).chunk(4, dim=-1)
            cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
            state = o.sigmoid() * cell.tanh()
            states.append(state)
        return torch.stack(states, dim=1)


class GRU(nn.Module):
    """Gated recurrent layers over a sequence, and a linear read-out of the last state.

    Written out like the LSTM, with both biases of the original, because that of U h is inside of the gate:
    (r, z, n) = W x + b;  (r', z', n') = U h + c;  h = z h + (1 - z) tanh(n + σ(r + r') n'),  z = σ(z + z').
    """

    def __init__(self, features: int, outputs: int, hidden: int, layers: int, codes: int | None) -> None:
        super().__init__()
        # Codes become features by an embedding; numbers are features.
        self.embedding = None if codes is None else nn.Embedding(codes, features)
        self.input_maps = nn.ModuleList(
            nn.Linear(features if layer == 0 else hidden, 3 * hidden) for layer in range(layers)
        )
        self.state_maps = nn.ModuleList(nn.Linear(hidden, 3 * hidden) for _ in range(layers))
        self.output = nn.Linear(hidden, outputs)
        _initialise_uniformly(hidden, self.input_maps, self.state_maps)

    def forward(self, x: Tensor) -> Tensor:
        """int64[rows, length] or [rows, length, features] -> [rows, outputs]."""
        sequence = x if self.embedding is None else self.embedding(x)
        for input_map, state_map in zip(self.input_maps, self.state_maps, strict=True):
            sequence = self._layer(input_map(sequence), state_map)
        return self.output(sequence[:, -1])

    @staticmethod
    def _layer(driven: Tensor, state_map: nn.Module) -> Tensor:
        """All states of one layer, from W x + b at every position [rows, length, 3 hidden]."""
        state = torch.zeros_like(driven[:, 0, : driven.shape[-1] // 3])
        states = []
        for drive in driven.unbind(1):
            r, z, n = drive.chunk(3, dim=-1)
            own_r, own_z, own_n = state_map(state).chunk(3, dim=-1)
            fresh = (n + (r + own_r).sigmoid() * own_n).tanh()
            state = fresh + (z + own_z).sigmoid() * (state - fresh)
            states.append(state)
        return torch.stack(states, dim=1)


class Bag(nn.Module):
    """The mean embedding of a text's codes, in whatever order, and a linear map of it."""

    def __init__(self, codes: int, outputs: int, embedding: int, padding: int | None) -> None:
        super().__init__()
        self.padding = padding
        self.embedding = nn.Embedding(codes, embedding)
        self.output = nn.Linear(embedding, outputs)

    def forward(self, codes: Tensor) -> Tensor:
        """int64[rows, length] -> [rows, outputs]; a text of padding alone has the mean zero."""
        words = self.embedding(codes)
        return self.output(_mean_over_words(words, codes, self.padding))


class EncoderLayer(nn.Module):
    """x + attention(norm(x)), then x + dense(norm(x)): normalised before, which needs no warm-up."""

    def __init__(self, size: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(size)
        self.queries_keys_values = nn.Linear(size, 3 * size)
        self.attended = nn.Linear(size, size)
        self.dense_norm = nn.LayerNorm(size)
        self.hidden = nn.Linear(size, hidden)
        self.dense = nn.Linear(hidden, size)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """[rows, length, size] -> the same; `mask`: bool[rows, 1, 1, length], which positions are seen."""
        parts = self.queries_keys_values(self.attention_norm(x)).chunk(3, dim=-1)
        queries, keys, values = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        seen = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        x = x + self.attended(seen.transpose(1, 2).flatten(-2))
        return x + self.dense(torch.relu(self.hidden(self.dense_norm(x))))


class Transformer(nn.Module):
    """Embeddings of codes and of their positions, encoder layers, and a linear map of the mean position."""

    def __init__(
        self,
        codes: int,
        length: int,
        outputs: int,
        size: int,
        heads: int,
        hidden: int,
        layers: int,
        padding: int | None,
    ) -> None:
        super().__init__()
        self.padding = padding
        self.embedding = nn.Embedding(codes, size)
        self.positions = nn.Parameter(0.1 * torch.randn(length, size))
        self.layers = nn.ModuleList(EncoderLayer(size, heads, hidden) for _ in range(layers))
        self.norm = nn.LayerNorm(size)
        self.output = nn.Linear(size, outputs)

    def forward(self, codes: Tensor) -> Tensor:
        """int64[rows, length] -> [rows, outputs]."""
        x = self.embedding(codes) + self.positions
        mask = None
        if self.padding is not None:
            is_word = codes != self.padding
            # A text of padding alone sees all of it: a softmax over nothing is not a number.
            mask = (is_word | ~is_word.any(1, keepdim=True))[:, None, None]
        for layer in self.layers:
            x = layer(x, mask)
        return self.output(_mean_over_words(self.norm(x), codes, self.padding))


def _mean_over_words(words: Tensor, codes: Tensor, padding: int | None) -> Tensor:
    """The mean over positions [rows, length, size] that do not only pad."""
    if padding is None:
        return words.mean(1)
    counted = (codes != padding).to(words.dtype)[..., None]
    return (words * counted).sum(1) / counted.sum(1).clamp_min(1)


def _initialise_uniformly(hidden: int, *maps: nn.Module) -> None:
    """As torch does for recurrent layers."""
    bound = 1 / math.sqrt(hidden)
    for each in maps:
        for parameter in each.parameters():
            nn.init.uniform_(parameter, -bound, bound)


def char_lstm(federation: Federation, *, embedding: int = 8, hidden: int = 256, layers: int = 2) -> nn.Module:
    """Embedding of 8 and two LSTM layers of 256, as in the EFL paper; can be vmapped."""
    characters = codes_of(federation, "char-lstm")
    require_counts(embedding=embedding, hidden=hidden, layers=layers)
    return CharLSTM(characters, federation.task.outputs, embedding, hidden, layers)


def gru(federation: Federation, *, embedding: int = 32, hidden: int = 128, layers: int = 1) -> nn.Module:
    """One gated recurrent layer of 128, over codes (embedded in 32) or over numbers; can be vmapped."""
    require_counts(embedding=embedding, hidden=hidden, layers=layers)
    inputs, outputs = one_input(federation, "gru"), federation.task.outputs
    if inputs.is_floating_point():
        if inputs.ndim != 3:
            raise UserError(
                "model gru needs sequences of codes [length] or of numbers [length, features], "
                f"not rows of shape {tuple(inputs.shape[1:])}"
            )
        return GRU(inputs.shape[-1], outputs, hidden, layers, codes=None)
    return GRU(embedding, outputs, hidden, layers, codes_of(federation, "gru"))


def bag(federation: Federation, *, embedding: int = 64, padding: int | None = None) -> nn.Module:
    """The mean of embeddings of 64, for texts; `padding`: the code that stands for no word."""
    require_counts(embedding=embedding)
    return Bag(codes_of(federation, "bag"), federation.task.outputs, embedding, padding)


def transformer(
    federation: Federation,
    *,
    size: int = 64,
    heads: int = 4,
    hidden: int = 128,
    layers: int = 2,
    padding: int | None = None,
) -> nn.Module:
    """An encoder of two layers of size 64 over codes; `padding`: the code that stands for no word."""
    require_counts(size=size, heads=heads, hidden=hidden, layers=layers)
    if size % heads:
        raise UserError(f"size={size} must be a multiple of heads={heads}")
    codes, length = codes_of(federation, "transformer"), federation.inputs.shape[1]
    return Transformer(codes, length, federation.task.outputs, size, heads, hidden, layers, padding)
