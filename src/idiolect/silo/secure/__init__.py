"""Secure sums between silos: the protocol of `idiolect.secure` around the exchanges of a run."""
