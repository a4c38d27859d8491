"""An exchange without training, on a row of zeros: what its messages look like, and which ones there are.

A coordinator knows from it what an upload must look like. A silo knows from it which exchanges the agreed
method has: it plays the method's server with a few stand-ins in place of silos.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.around import innermost
from idiolect.core.cohort import Cohort
from idiolect.core.exchange import ClientState, Exchange, Message, ServerState, Site
from idiolect.core.fixed import put_weights
from idiolect.core.objective import Batch
from idiolect.core.schedule import Clock
from idiolect.core.tree import Params
from idiolect.engines.engine import Outcome, Setting, Traffic, combine
from idiolect.engines.local_view import stand_in
from idiolect.engines.round import rehearse_round
from idiolect.errors import UserError
from idiolect.participation.sampling import Uniform
from idiolect.runs.config import RunConfig
from idiolect.runs.setup import build_setting
from idiolect.silo.checks import looks
from idiolect.silo.schema import Schema

# As many as there are silos, since messages can depend on it, but servers that keep a model for each of
# them must not take more memory than this; and exchanges do not depend on more than some.
_MOST_STAND_INS, _MOST_BYTES = 64, 2**30
_ROWS = 8  # of each of them


def rehearsed_upload(
    setting: Setting,
    exchange: Exchange,
    client: ClientState,
    down: Message,
    client_id: Tensor,
    round_number: int,
) -> Message:
    """An upload that nobody trained, of the structure, shapes and types that a real one has."""
    federation = setting.federation
    rows = Batch(
        torch.zeros_like(federation.inputs[:1]),
        torch.zeros_like(federation.targets[:1]),
        torch.ones(1, dtype=federation.inputs.dtype),
        torch.tensor(0),
    )
    site = Site(
        objective=setting.objective,
        client_id=client_id,
        size=torch.tensor(1),
        steps=torch.tensor(1),
        full_steps=torch.tensor(1),
        key=setting.client_key(client_id, round_number),
        clock=Clock(torch.tensor(round_number), torch.tensor(0), setting.clock_steps(exchange)),
        rows=rows,
        validation=rows,
    )
    return exchange.finish(exchange.begin(client, down, site), client, down, site)[1]


class _Rehearsed(NamedTuple):
    """One exchange of one round, and its messages."""

    exchange: Exchange
    down: Message
    upload: Message


@dataclass
class AgreedExchange:
    """An exchange of the agreed method, with the agreed codecs around it."""

    exchange: Exchange
    upload: Message  # that it begins with
    times: int = 0  # at most, in one round
    downs: list[Any] = field(default_factory=list)  # what its messages look like, in some round or other


class AgreedExchanges:
    """All exchanges that the agreed method has in the agreed rounds, played no further than is asked for."""

    def __init__(
        self, config: RunConfig, schema: Schema, clients: int, model_bytes: int, weights: Params
    ) -> None:
        stand_ins = max(2, min(clients, _MOST_STAND_INS, _MOST_BYTES // max(model_bytes, 1)))
        rows = pd.DataFrame(_ROWS, index=range(stand_ins), columns=["train", "validation", "test"])
        self.setting = build_setting(config, stand_in(schema.preprocessing, rows))
        put_weights(self.setting.objective.module, weights)
        self.rounds = config.pace.rounds
        self.most_in_a_round = 0
        self._plan = Uniform()
        self.server = self.setting.found(self._plan)
        self._round = 0
        self._known: list[AgreedExchange] = []
        self._play()

    @property
    def first(self) -> ClientState:
        """A silo's first state; of some methods that of another silo, which looks the same."""
        return tree.row(self.setting.states(torch.tensor([0])), 0)

    @property
    def brief(self) -> Message:
        """What a brief looks like."""
        method = self.setting.method
        brief = method.brief(self.server, torch.tensor([0]))
        return tree.row(brief, 0) if method.personal_brief else brief

    def of_first_round(self) -> Iterator[AgreedExchange]:
        """Those of round 0, and of what was played since."""
        return iter(self._known)

    def find(self, asked: Any) -> AgreedExchange:
        """The exchange that is asked for; any other than the agreed ones is refused."""
        while isinstance(asked, Exchange):
            for known in self._known:
                if innermost(known.exchange) == asked:
                    return known
            if not self._play():
                break
        raise UserError(
            f"a message asks for {type(asked).__name__}, which is no exchange of the agreed method "
            f"{self.setting.method.name} with its agreed settings"
        )

    def require_usual(self, agreed: AgreedExchange, down: Message) -> None:
        """Refuse a message of an exchange that looks like none that the exchange has in any round."""
        seen = looks(down)
        while seen not in agreed.downs and self._play():
            pass
        if seen not in agreed.downs:
            raise UserError(
                "the message of an exchange has another structure, shape or type than the method has"
            )

    def _play(self) -> bool:
        """One more round, if there is one."""
        if self._round == self.rounds:
            return False
        engine = _Rehearsal(self.setting)
        self.server = rehearse_round(engine, self._plan, self.server, self._round).server
        self._round += 1
        self.most_in_a_round = max(self.most_in_a_round, len(engine.carried_out))
        for one in engine.carried_out:
            known = next((known for known in self._known if known.exchange == one.exchange), None)
            if known is None:
                known = AgreedExchange(one.exchange, one.upload)
                self._known.append(known)
            times = sum(other.exchange == one.exchange for other in engine.carried_out)
            known.times = max(known.times, times)
            if (seen := looks(one.down)) not in known.downs:
                known.downs.append(seen)
        return True


class _Rehearsal:
    """An engine whose clients answer without training."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.carried_out: list[_Rehearsed] = []

    def carry_out(
        self, exchange: Exchange, server: ServerState, cohort: Cohort, round_number: int
    ) -> Outcome:
        """Carry out one exchange."""
        cohort = self.setting.prepare(exchange, server, cohort, round_number)
        self._note(exchange, server, round_number)
        uploads = [self._answer(exchange, server, one, round_number)[1] for one in cohort.ids[:, None]]
        replies = combine(exchange, server, uploads, cohort)
        return Outcome(replies, cohort, Traffic(len(cohort)), cohort.ids)

    def _note(self, exchange: Exchange, server: ServerState, round_number: int) -> None:
        down, upload = self._answer(exchange, server, torch.tensor([0]), round_number)
        self.carried_out.append(_Rehearsed(exchange, down, upload))

    def _answer(
        self, exchange: Exchange, server: ServerState, one: Tensor, round_number: int
    ) -> tuple[Message, Message]:
        down = exchange.down(server, one)
        down = tree.row(down, 0) if exchange.personal_down else down
        client = tree.row(self.setting.states(one), 0)
        return down, rehearsed_upload(self.setting, exchange, client, down, one[0], round_number)
