"""A table on the screen that is told its rows again and again: it changes what changed, and keeps the chosen row."""

from __future__ import annotations

from rich.text import Text
from textual.widgets import DataTable

from loadmanager_api.cli.top.rows import Row, Table


class Grid(DataTable[Text]):
    """Rows by name. Cells are plain text: nothing in them is markup."""

    def __init__(self, id: str, title: str) -> None:
        super().__init__(id=id, cursor_type="row", zebra_stripes=True)
        self.border_title = title
        self._shown = Table((), {})

    @property
    def chosen(self) -> str | None:
        """The name of the row under the cursor."""
        names = list(self._shown.rows)
        return names[self.cursor_row] if 0 <= self.cursor_row < len(names) else None

    def show(self, table: Table) -> None:
        """Show this; the cursor stays on its row, or where the row was."""
        before, chosen = self._shown, self.chosen
        self._shown = table
        if before.columns == table.columns and list(before.rows) == list(table.rows):
            self._change(before, table)
            return
        at, top = self.cursor_row, self.scroll_y
        self.clear(columns=before.columns != table.columns)
        if before.columns != table.columns:
            for name in table.columns:
                self.add_column(Text(name, justify="right" if name in table.right else "left"), key=name)
        for name, row in table.rows.items():
            self.add_row(*self._cells(row), key=name)
        names = list(table.rows)
        self.move_cursor(row=names.index(chosen) if chosen in names else min(at, len(names) - 1))
        self.scroll_to(y=top, animate=False)

    def _change(self, before: Table, table: Table) -> None:
        for name, row in table.rows.items():
            cells = zip(table.columns, before.rows[name], row, self._cells(row), strict=True)
            for column, was, now, cell in cells:
                if was != now:
                    self.update_cell(name, column, cell, update_width=len(now) != len(was))

    def _cells(self, row: Row) -> list[Text]:
        right = self._shown.right
        return [
            Text(text, no_wrap=True, justify="right" if column in right else "left")
            for column, text in zip(self._shown.columns, row, strict=True)
        ]
