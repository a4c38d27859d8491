"""An exchange that comes after a run: for as long as a user says, on the clock that the run has reached."""

from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from idiolect.core.method import (
    Bits,
    ClientState,
    Cohort,
    Exchange,
    Info,
    LocalWork,
    Message,
    ServerState,
    Site,
    Work,
)
from idiolect.core.objective import Batch


@dataclass(frozen=True, kw_only=True)
class AfterRun(Exchange):
    """A newcomer's exchange. Past rounds have the steps that they had, however long the newcomer trains."""

    inner: Exchange
    local_steps: LocalWork | Literal[0]
    round_steps: int  # of each of the run's rounds, on the clock of schedules

    @property
    def batches_per_step(self) -> int:  # type: ignore[override]
        """Those of the exchange."""
        return self.inner.batches_per_step

    @property
    def sees_all_rows(self) -> bool:  # type: ignore[override]
        """Whether the exchange does."""
        return self.inner.sees_all_rows

    @property
    def personal_down(self) -> bool:  # type: ignore[override]
        """Whether the exchange's is."""
        return self.inner.personal_down

    def ask(self, server: ServerState, cohort: Cohort, key: Tensor) -> Cohort:
        """As the exchange says."""
        return self.inner.ask(server, cohort, key)

    def down(self, server: ServerState, ids: Tensor) -> Message:
        """As the exchange says."""
        return self.inner.down(server, ids)

    def begin(self, client: ClientState, down: Message, site: Site) -> Work:
        """As the exchange says."""
        return self.inner.begin(client, down, self._on_the_runs_clock(site))

    def step(
        self, work: Work, client: ClientState, down: Message, batches: tuple[Batch, ...], site: Site
    ) -> Work:
        """As the exchange says."""
        return self.inner.step(work, client, down, batches, self._on_the_runs_clock(site))

    def finish(
        self, work: Work, client: ClientState, down: Message, site: Site
    ) -> tuple[ClientState, Message]:
        """As the exchange says."""
        return self.inner.finish(work, client, down, self._on_the_runs_clock(site))

    def weights(self, server: ServerState, cohort: Cohort) -> Tensor | None:
        """As the exchange says."""
        return self.inner.weights(server, cohort)

    def absorb(self, server: ServerState, replies: Message, cohort: Cohort) -> tuple[ServerState, Info]:
        """The server learns nothing from a newcomer."""
        return server, {}

    def down_bits(self, server: ServerState, down: Message, ids: Tensor) -> Bits:
        """As the exchange says."""
        return self.inner.down_bits(server, down, ids)

    def up_bits(self, uploads: Message, ids: Tensor) -> Bits:
        """As the exchange says."""
        return self.inner.up_bits(uploads, ids)

    def _on_the_runs_clock(self, site: Site) -> Site:
        return replace(site, clock=site.clock._replace(local_steps=self.round_steps))
