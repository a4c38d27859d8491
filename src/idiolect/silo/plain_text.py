"""Texts that others wrote, made fit for logs and screens."""

import logging

MOST_CHARACTERS = 2000  # of a sentence that the other side wrote


def one_line(text: object, most: int = MOST_CHARACTERS) -> str:
    r"""A text of others for logs and screens: one line, nothing that a terminal would obey, not too long.

    >>> one_line("gone\n\x1b[2J away")
    'gone ?[2J away'
    """
    line = "".join(letter if letter.isprintable() else "?" for letter in " ".join(str(text).split()))
    return line if len(line) <= most else f"{line[:most]}..."


class OneLineFormatter(logging.Formatter):
    """A line of a log is one line, whoever wrote what is in it."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        return one_line(super().format(record), 10 * MOST_CHARACTERS)
