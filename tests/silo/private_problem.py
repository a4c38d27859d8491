"""Private runs between silos beside one process that has their tables and their secrets."""

from collections.abc import Mapping
from typing import Any

from idiolect.core.exchange import ClientState, Message
from idiolect.engines.sequential import Assignment, Sequential
from idiolect.silo.privacy.protection import Protection
from idiolect.silo.served_run import ServedRun
from idiolect.silo.service import Silo
from idiolect.simulation import Simulation
from silo.losses import lose_replies
from silo.problem import simulate


class WithSecrets(Sequential):
    """One client after the other, each with the secret of its silo, for the messages that it answered."""

    def __init__(self, simulation: Simulation, silos: Mapping[str, Silo], run: ServedRun) -> None:
        super().__init__(simulation.engine.setting)
        engagements = [silos[name]._engagement(run.name) for name in run.settings.silos]
        self.protections = [
            Protection(run.settings.config.privacy, self.setting, one.vault.folder, one.sums)
            for one in engagements
        ]
        self.messages = [iter(one.account.ledger.runs[run.name].answers) for one in engagements]

    def work(self, assignment: Assignment) -> tuple[ClientState, Message]:
        """The work of one client, drawn from its silo's secret."""
        client_id = int(assignment.one.ids)
        protection, message = self.protections[client_id], next(self.messages[client_id], "not answered")
        with protection.own_randomness(message):
            client, upload = super().work(assignment)
            return client, protection.hidden(upload)


def simulate_with_secrets(
    settings: dict[str, Any],
    silos: Mapping[str, Silo],
    run: ServedRun,
    rounds: int,
    lost: Mapping[int, str] | None = None,
) -> Simulation:
    """What the silos of a run computed, in one process; some replies were lost in some rounds."""
    simulation = simulate(settings, silos=run.settings.silos, data="at-silos")
    lose_replies(simulation, run.settings.silos, lost or {})
    simulation.engine = WithSecrets(simulation, silos, run)
    return simulation.play(rounds)
