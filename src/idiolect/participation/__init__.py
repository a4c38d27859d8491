"""Who takes part in a round, how much of the work each completes, and whose reply arrives."""

from idiolect.participation.plan import ClientEntry, Participation, RoundPlan
from idiolect.participation.sampling import Plan, Proportional, Uniform

__all__ = ["ClientEntry", "Participation", "Plan", "Proportional", "RoundPlan", "Uniform"]
