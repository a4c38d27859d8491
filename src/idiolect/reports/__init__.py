"""A page that a reader can keep: tables and figures of runs, in one file that needs nothing else."""

from idiolect.reports.page import can_write_reports, require_libraries, write_report

__all__ = ["can_write_reports", "require_libraries", "write_report"]
