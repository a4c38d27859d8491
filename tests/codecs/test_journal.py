"""Messages as they travel: what is received is what was sent, bit for bit, and nonsense is refused."""

import pytest
import torch

from idiolect.codecs import NAMES, by_name
from idiolect.codecs.feedback import Broadcast, Channel
from idiolect.codecs.journal import Journal, Missed
from idiolect.core import rng, tree
from idiolect.core.cohort import Population
from idiolect.core.tree import Params
from idiolect.errors import UserError

CLIENTS = 4
TERNARY = Channel(by_name("ternary", keep=0.1))


def drawn(seed: int, dtype: torch.dtype = torch.float64) -> Params:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"weight": (9, 8), "bias": (9,), "gain": ()}
    return {
        name: (3 * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype)
        for name, shape in shapes.items()
    }


def assert_identical(ours: Params, theirs: Params) -> None:
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scope", ["per_tensor", "flat"])
@pytest.mark.parametrize("name", NAMES)
def test_a_channel_sends_exactly_the_counted_bits_and_loses_none(name, scope, dtype):
    channel = Channel(by_name(name), scope)
    residual = channel.no_residual(drawn(0, dtype))
    for number in range(3):
        sent, residual = channel.send(residual, drawn(number, dtype), rng.key(number, "channel"))
        encoded = channel.encode(sent)
        assert encoded.dtype == torch.uint8
        assert len(encoded) == -(-int(channel.bits(tree.stack([sent]))) // 8)
        assert_identical(channel.decode(encoded, drawn(7, dtype)), sent)


class Told:
    """A server that moves its model, and the copies of clients that hear of it now and then."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        everybody = Population(torch.ones(CLIENTS), torch.tensor([True, True, True, False]))
        self.broadcast = Broadcast.begin(drawn(0), everybody)
        self.journal = self.broadcast.noted(None, channel)
        self.copies = [self.broadcast.model] * CLIENTS
        self.seed = 0

    def move(self) -> None:
        self.seed += 1
        sent, _ = self.channel.send(
            self.channel.no_residual(drawn(0)), drawn(self.seed), rng.key(self.seed, "x")
        )
        self.broadcast = self.broadcast.moved(sent, self.channel)
        self.journal = self.broadcast.noted(self.journal, self.channel)

    def message(self, client: int) -> Missed | Params:
        return self.broadcast.told(self.journal, torch.tensor(client))

    def tell(self, client: int, *, confirmed: bool = True) -> Missed | Params:
        message = self.message(client)
        self.copies[client] = self.channel.follow(message, self.copies[client])
        if confirmed:
            self.broadcast = self.broadcast.confirmed(torch.tensor([client]))
        return message


def test_a_client_follows_the_model_through_what_it_missed():
    """Client 0 hears of every change, 1 of every third, 2 never before the end, 3 came later."""
    told = Told(TERNARY)
    dense = tree.count_bits(drawn(0))
    kinds = set()
    for number in range(24):
        told.move()
        for client in (0, 1):
            if client == 0 or number % 3 == 2:
                counted = int(told.broadcast.catch_up_bits(torch.tensor(client)))
                message = told.tell(client)
                assert isinstance(message, Missed)
                assert counted / 8 <= len(message.payloads) < counted / 8 + len(message.sizes)
                assert len(message.sizes) == (1 if client == 0 else 3)
                assert_identical(told.copies[client], told.broadcast.model)
    for client in (2, 3):
        kinds.add(type(told.tell(client)))
        assert_identical(told.copies[client], told.broadcast.model)
        assert int(told.broadcast.total) > dense
    assert kinds == {dict}
    assert int(told.journal.bits.sum()) <= dense
    nothing = told.tell(0)
    assert (len(nothing.payloads), len(nothing.models)) == (0, 1)
    assert_identical(told.copies[0], told.broadcast.model)


def test_a_client_whose_reply_was_lost_skips_what_it_has_already():
    told = Told(TERNARY)
    told.move()
    told.tell(0, confirmed=False)
    told.move()
    message = told.tell(0)
    assert len(message.sizes) == 2
    assert_identical(told.copies[0], told.broadcast.model)


def test_a_sender_without_its_journal_sends_the_whole_model_once():
    told = Told(TERNARY)
    told.move()
    told.tell(0)
    told.move()
    told.journal = told.broadcast.noted(None, TERNARY)
    assert_identical(told.tell(0), told.broadcast.model)
    told.move()
    assert len(told.tell(0).sizes) == 1
    assert_identical(told.copies[0], told.broadcast.model)


def test_a_journal_that_lacks_a_change_is_begun_anew():
    told = Told(TERNARY)
    told.move()
    told.tell(0)
    old = told.journal
    told.move()
    told.move()
    begun = told.broadcast.noted(old, TERNARY)
    assert len(begun.bits) == 0
    assert begun.total == int(told.broadcast.total)


def test_without_a_codec_the_model_travels_as_it_is():
    told = Told(Channel(None))
    told.move()
    assert_identical(told.tell(0), told.broadcast.model)
    assert isinstance(told.tell(0), Missed)  # it holds the model: nothing to say


def test_an_unknown_copy_is_refused():
    told = Told(TERNARY)
    told.move()
    with pytest.raises(UserError, match="none that the sender knows of"):
        TERNARY.follow(told.message(0), drawn(5))


def bytes_of(count: int) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.uint8)


def numbers(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def good() -> Missed:
    told = Told(TERNARY)
    told.move()
    return told.message(0)


MALFORMED = {
    "cut short": lambda m: m._replace(payloads=m.payloads[:-1]),
    "too few bytes": lambda m: m._replace(payloads=m.payloads[:-4], sizes=m.sizes - 4),
    "negative sizes": lambda m: m._replace(
        sizes=numbers(-1, len(m.payloads) + 1), models=numbers(0, 0, *m.models.tolist()[:1])
    ),
    "no model after the change": lambda m: m._replace(models=m.models[:1]),
    "another model after the change": lambda m: m._replace(models=m.models + numbers(0, 1)),
    "too long": lambda m: m._replace(payloads=bytes_of(10**6), sizes=numbers(10**6)),
    "numbers instead of bytes": lambda m: m._replace(payloads=m.payloads.double()),
    "a tree instead of bytes": lambda m: m._replace(payloads={"a": m.payloads}),
    "a model of other shapes": lambda m: {"weight": torch.zeros(2**10)},
    "a model of another type": lambda m: tree.map_tree(torch.Tensor.float, drawn(0)),
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_message_is_one_sentence(kind):
    held = drawn(0)
    TERNARY.follow(good(), held)
    with pytest.raises(UserError, match=r"fit|longer|message") as caught:
        TERNARY.follow(MALFORMED[kind](good()), held)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("scope", ["per_tensor", "flat"])
@pytest.mark.parametrize("name", NAMES)
def test_noise_is_refused_or_decoded_to_finite_numbers(name, scope):
    """Random bytes, and good messages with a few bits turned over."""
    channel, like = Channel(by_name(name), scope), drawn(0, torch.float32)
    sent, _ = channel.send(channel.no_residual(like), like, rng.key(0, "noise"))
    encoded = channel.encode(sent)
    generator = torch.Generator().manual_seed(3)
    decoded = 0
    for _ in range(60):
        length = int(torch.randint(0, 2 * len(encoded), (), generator=generator))
        noise = torch.randint(0, 256, (length,), generator=generator, dtype=torch.uint8)
        turned = encoded.clone()
        turned[torch.randint(0, len(encoded), (2,), generator=generator)] ^= 16
        for message in (noise, turned, encoded[:length]):
            try:
                result = channel.decode(message, like)
            except UserError:
                continue
            decoded += 1
            assert all(leaf.isfinite().all() for leaf in tree.leaves(result))
            assert tree.to_named(result).keys() == like.keys()
    assert decoded > 0


def test_a_journal_never_outgrows_the_model():
    told = Told(TERNARY)
    dense = tree.count_bits(drawn(0))
    sizes = []
    for _ in range(40):
        told.move()
        sizes.append(len(told.journal.payloads))
        assert isinstance(told.journal, Journal)
        assert int(told.journal.bits.sum()) <= dense
    assert len(set(sizes[-10:])) < 10  # it has stopped growing
