"""Who takes part in a round, how much of the work each completes, and whose reply arrives."""
