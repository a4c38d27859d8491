"""What a run has learned: metrics of every client and model kind, their summaries, and who gains."""
