"""What a table of a run is made of, and the columns that most tables share."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

Name = pl.Categorical
"""Interned text: kernel, operator and API names repeat thousands of times."""


@dataclass(frozen=True)
class Column:
    name: str
    dtype: pl.DataType | type[pl.DataType]
    unit: str
    meaning: str


@dataclass(frozen=True)
class Table:
    name: str
    meaning: str
    columns: tuple[Column, ...]

    @property
    def schema(self) -> dict[str, pl.DataType | type[pl.DataType]]:
        return {column.name: column.dtype for column in self.columns}

    def empty(self) -> pl.DataFrame:
        return pl.DataFrame(schema=self.schema)

    def conform(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return *frame* with exactly the declared columns, in order; missing ones become null."""
        return frame.select(
            [
                (pl.col(c.name) if c.name in frame.columns else pl.lit(None)).cast(c.dtype).alias(c.name)
                for c in self.columns
            ]
        )


RANK = Column("rank", pl.Int32, "", "global rank; -1 - k for the k-th trace whose rank is unknown")
START = Column("start_ns", pl.Int64, "ns", "when it began")
END = Column("end_ns", pl.Int64, "ns", "when it ended")
TID = Column("tid", pl.Int64, "", "thread id on the host")
CORRELATION = Column("correlation", pl.Int64, "", "links a runtime call to the device work it launched; -1 if none")
