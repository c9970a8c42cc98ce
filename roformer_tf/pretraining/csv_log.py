"""A CSV file that grows by a row at a time and survives being cut off anywhere."""

import os
from pathlib import Path


class CsvLog:
    """Rows of numbers appended to a CSV file.

    A row is written whole by one call and can be read at once. What a killed process leaves, a last line without its
    end, is no row: it is not read, and gone when the next process calls `keep`.

    Args:
        path: str or path of the file; it appears with the first row.
        columns: names of the columns, the first line of the file.

    Example:

    >>> import tempfile, pathlib
    >>> from roformer_tf.pretraining.csv_log import CsvLog
    >>> log = CsvLog(pathlib.Path(tempfile.mkdtemp()) / "log.csv", ["step", "loss"])
    >>> log.append({"step": 1, "loss": 2.5})
    >>> log.append({"step": 2, "loss": 1.75})
    >>> log.keep(lambda row: int(row["step"]) <= 1)
    [{'step': '1', 'loss': '2.5'}]
    >>> log.rows()
    [{'step': '1', 'loss': '2.5'}]
    """

    def __init__(self, path, columns):
        self.path = Path(path)
        self.columns = tuple(columns)

    def append(self, row):
        """Writes one row.

        Args:
            row: dict from column to an integer, a float, or None for an empty field.

        Raises:
            OSError: if the disk is full or the folder cannot be written.
        """
        line = ",".join(_field(row[name]) for name in self.columns) + "\n"
        try:
            with open(self.path, "ab", buffering=0) as file:
                if file.tell() == 0:
                    line = self._header() + line
                line = line.encode()
                if file.write(line) != len(line):
                    raise OSError("only a part of the row could be written; is the disk full?")
        except OSError as error:
            raise OSError(f"Cannot write the log {self.path}: {error}") from error

    def rows(self):
        """All complete rows.

        Returns:
            list of dicts from column to str, in the order of the file; empty if there is no file.

        Raises:
            ValueError: if the file has other columns, or a line has not as many values as there are columns.
        """
        rows = []
        for number, fields in self._lines():
            if len(fields) != len(self.columns):
                raise ValueError(
                    f"{self.path}, line {number}: expected {len(self.columns)} values. "
                    f"Received: {','.join(fields)!r}; delete the line"
                )
            rows.append(dict(zip(self.columns, fields)))
        return rows

    def keep(self, wanted):
        """Drops rows, and with them all lines that are no rows; the file is replaced whole or not at all.

        Args:
            wanted: function from a row, a dict from column to str, to whether it stays. A row for which it raises
                ValueError is dropped.

        Returns:
            The rows that stay.

        Raises:
            ValueError: if the file has other columns.
        """
        if not self.path.exists():
            return []
        rows = [
            row
            for _, fields in self._lines()
            if len(fields) == len(self.columns)
            and _holds(wanted, row := dict(zip(self.columns, fields)))
        ]
        text = self._header() + "".join(",".join(row.values()) + "\n" for row in rows)
        if text.encode() != self.path.read_bytes():
            temporary = self.path.with_name(f".{self.path.name}.new")
            try:
                temporary.write_text(text, encoding="utf-8", newline="")
                _to_disk(temporary)
                os.replace(temporary, self.path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
        return rows

    def sync(self):
        """Returns when the rows are on the disk, so that a power failure does not take them."""
        if self.path.exists():
            _to_disk(self.path)

    def _header(self):
        return ",".join(self.columns) + "\n"

    def _lines(self):
        """Yields (number, fields) of the complete lines after the header."""
        if not self.path.exists():
            return
        text = self.path.read_bytes().decode("utf-8", errors="replace")
        header, end, rest = text.partition("\n")
        complete = header.rstrip("\r") == ",".join(self.columns) if end else False
        if not complete and (end or not self._header().startswith(text)):
            raise ValueError(
                f"{self.path} is no log of a pretraining run: expected the columns {','.join(self.columns)}. "
                f"Received: {header[:200]!r}"
            )
        lines = rest.split("\n")[:-1]  # what follows the last line's end is no line
        yield from ((number, line.rstrip("\r").split(",")) for number, line in enumerate(lines, 2))


def _field(value):
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else f"{value:.7g}"


def _holds(wanted, row):
    try:
        return wanted(row)
    except ValueError:
        return False


def _to_disk(path):
    with open(path, "rb+") as file:
        os.fsync(file.fileno())
