"""Federations: whose rows are whose, where they come from, and how one data set is dealt to clients."""
