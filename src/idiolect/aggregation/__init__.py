"""What a server makes of uploads: sums that it can trust, and steps beyond an average."""
