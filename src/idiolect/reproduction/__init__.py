"""The papers' experiments: recipes as data, their runs, what the papers claim, and what came of it."""
