"""From a configuration to a folder with results: settings, training, checkpoints, comparison, export."""
