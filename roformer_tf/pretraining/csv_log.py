import os
from pathlib import Path

from roformer_tf.files import flush_to_disk, replace_file


class CsvLog:
    """A CSV file of numbers and names that survives a kill at any moment and continues exactly.

    `keras.callbacks.CSVLogger` writes a row per epoch, and appends to whatever a killed process
    left. Here each row is one write that can be read at once. What a killed process leaves of a
    last row is never read as one, and `keep` removes it, together with the rows of steps that will
    run again. The first row creates the file, with the names of the columns as its first line.
    """

    def __init__(self, path, columns):
        self.path = Path(path)
        self.columns = tuple(columns)
        self._header = ",".join(columns) + "\n"

    def append(self, row):
        """Writes a row: a dict from column to int, float, str without commas, or None (empty)."""
        line = ",".join(_format(row[name]) for name in self.columns) + "\n"
        try:
            with open(self.path, "ab", buffering=0) as file:
                data = (line if file.tell() else self._header + line).encode()
                if file.write(data) != len(data):
                    raise OSError("only a part of the row could be written; is the disk full?")
        except OSError as error:
            raise OSError(f"Cannot write the log {self.path}: {error}") from error

    def rows(self):
        """Returns all complete rows: a list of dicts from column to str, empty without a file."""
        lines = self._lines()
        for number, fields in enumerate(lines, 2):
            if len(fields) != len(self.columns):
                raise ValueError(
                    f"{self.path}, line {number}: expected {len(self.columns)} values. "
                    f"Received: {','.join(fields)!r}; delete the line"
                )
        return [dict(zip(self.columns, fields)) for fields in lines]

    def keep(self, wanted):
        """Removes rows, and all lines that are not rows, by an atomic write.

        Returns the rows that stay: those for which `wanted(row)` is true and no `ValueError`.
        """
        rows = [dict(zip(self.columns, f)) for f in self._lines() if len(f) == len(self.columns)]
        rows = [row for row in rows if _holds(wanted, row)]
        data = (self._header + "".join(",".join(row.values()) + "\n" for row in rows)).encode()
        if self.path.exists() and data != self.path.read_bytes():
            with replace_file(self.path) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        return rows

    def sync(self):
        """Returns when the rows are on the disk, where a power failure does not reach them."""
        if self.path.exists():
            flush_to_disk(self.path)

    def _lines(self):
        """The values of each complete line after the header."""
        if not self.path.exists():
            return []
        text = self.path.read_bytes().decode("utf-8", errors="replace")
        header, end, rest = text.partition("\n")
        if header.rstrip("\r") + "\n" != self._header if end else not self._header.startswith(text):
            raise ValueError(
                f"{self.path} is not the log of a pretraining run: expected the columns "
                f"{','.join(self.columns)}. Received: {header[:200]!r}"
            )
        # what follows the last line's end is not a line
        return [line.rstrip("\r").split(",") for line in rest.split("\n")[:-1]]


def _format(value):
    if value is None:
        return ""
    return str(value) if isinstance(value, int | str) else f"{value:.7g}"


def _holds(wanted, row):
    try:
        return wanted(row)
    except ValueError:
        return False
