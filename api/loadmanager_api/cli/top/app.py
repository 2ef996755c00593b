"""The screen of `loadmanager top`, and its keys."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import aclosing
from typing import Any, ClassVar

import click
import msgspec
from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.markup import escape
from textual.screen import ModalScreen
from textual.widgets import Button, DataTable, Footer, Input, OptionList, Static

from loadmanager_api.cli.channel import events
from loadmanager_api.cli.client import Failed
from loadmanager_api.cli.names import NAMESPACE
from loadmanager_api.cli.printing import one_line
from loadmanager_api.cli.remote import Remote
from loadmanager_api.cli.top import asking
from loadmanager_api.cli.top.asking import Filters, Seen
from loadmanager_api.cli.top.rows import (
    Moves,
    Row,
    Table,
    all_wrong,
    brokers_table,
    bundles_table,
    by_attention,
    headline,
    wrong,
)
from statechannel.law.bundle import Bundle
from statechannel.law.transitions import State


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


class Sure(ModalScreen[bool]):
    """Asks whether to do it. The default answer is no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("y", "answer(True)", "Yes"),
        ("n,escape", "answer(False)", "No"),
        ("left,right", "app.focus_next", "Other"),
    ]

    def __init__(self, what: str) -> None:
        super().__init__()
        self._what = what

    def compose(self) -> ComposeResult:
        with Vertical(classes="window"):
            yield Static(Text(f"{self._what}. Are you sure?"))
            with Horizontal():
                yield Button("No (n)", id="no")
                yield Button("Yes (y)", id="yes", variant="error")

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)


class Pick(ModalScreen[str | None]):
    """One of several; None: none of them."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss(None)", "Back")]

    def __init__(self, question: str, choices: Sequence[str]) -> None:
        super().__init__()
        self._question = question
        self._choices = choices

    def compose(self) -> ComposeResult:
        with Vertical(classes="window"):
            yield Static(Text(self._question))
            yield OptionList(*(Text(choice) for choice in self._choices))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._choices[event.option_index])


class Write(ModalScreen[str | None]):
    """A line of text; None: nothing was entered."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss(None)", "Back")]

    def __init__(self, question: str, before: str) -> None:
        super().__init__()
        self._question = question
        self._before = before

    def compose(self) -> ComposeResult:
        with Vertical(classes="window"):
            yield Static(Text(self._question))
            yield Input(self._before)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip())


class Page(ModalScreen[None]):
    """Text to read."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,q,enter", "dismiss", "Back")]

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title = title
        self._text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="page") as page:
            page.border_title, page.border_subtitle = escape(self._title), "Escape: back"
            yield Static(Text(self._text))


REDRAW_S = 0.25
"""How often changes are drawn at most, however many come."""

ALL = "all states"

HELP = """\
Tab        the next table; arrows, Page up, Page down: its rows
Enter      on a broker: only its bundles; on a bundle or a move: why it is there

t          move the chosen bundle to another broker
u          take the chosen bundle from its owner; the next lookup assigns it
d          drain the chosen broker, or end its drain
e          explain the chosen bundle; in the table of brokers, the chosen broker

!          what is wrong: why, since when, and what to do
l          the hottest bundles of each broker; again: what is wrong first, then by name
n          only bundles of a namespace
s          only bundles in a state
x          all bundles again
] [        the next page, the one before
q          quit

Brokers that are dead, suspected, behind or unfit come first, then the others by name. A page has 200 bundles at most;
first those that no broker serves, then those under way. Moves are those since the start, the newest first, one row for
each bundle; with --namespace only of that namespace. What changes something asks first. Brokers refuse what your role
does not allow.
"""

STYLE = """
Screen { layout: vertical; }
#head { height: 3; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }
Grid { border-top: solid $primary; border-title-color: $text; scrollbar-size: 1 1; overflow-x: hidden; }
Grid:focus { border-top: heavy $accent; }
#brokers { height: auto; max-height: 35%; }
#bundles { height: 1fr; min-height: 4; }
#moves { height: 25%; min-height: 4; }
ModalScreen { align: center middle; }
.window { width: 70; max-width: 95%; height: auto; max-height: 90%; padding: 1 2; border: heavy $accent;
  background: $surface; }
.window Horizontal { height: auto; margin-top: 1; align-horizontal: right; }
.window Button { margin-left: 2; }
.window OptionList { height: auto; max-height: 12; margin-top: 1; }
.window Input { margin-top: 1; }
.page { width: 95%; height: 90%; padding: 0 2; border: heavy $accent; background: $surface; }
.page Static { height: auto; }
"""


class Top(App[None]):
    """Tables of brokers, bundles and moves. Asks brokers every `every_s` seconds, and follows their changes."""

    CSS = STYLE
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        ("t", "transfer", "Move"),
        ("u", "unload", "Unload"),
        ("d", "drain", "Drain"),
        ("e", "explain", "Explain"),
        ("l", "order", "Hot"),
        ("n", "namespace", "Namespace"),
        ("s", "state", "State"),
        ("x", "everything", "All"),
        Binding("right_square_bracket", "turn(1)", "Next", show=False),
        Binding("left_square_bracket", "turn(-1)", "Before", show=False),
        Binding("exclamation_mark", "explain_wrong", "Wrong", show=False),
        ("question_mark", "explain_keys", "Help"),
        ("q", "quit", "Quit"),
    ]

    def __init__(self, remote: Remote, *, namespace: str | None, owner: str | None, every_s: float) -> None:
        super().__init__()
        self._remote = remote
        self._every_s = every_s
        self._wanted = Filters(namespace=namespace, owner=owner)
        self._watched = namespace
        self._pages: list[str | None] = [None]
        """What each page up to the present one is behind."""
        self._next: str | None = None
        self._seen = Seen([], {}, {})
        self._bundles: dict[str, dict[str, Any]] = {}
        self._moves = Moves()
        self._changed = False
        self._again = asyncio.Event()
        self._head = Static(id="head")
        self._grids = {name: Grid(name, f" {name.capitalize()} ") for name in ("brokers", "bundles", "moves")}

    # --- what is shown

    def compose(self) -> ComposeResult:
        yield self._head
        yield from self._grids.values()
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        self.grid("bundles").focus()
        self._tell(f"asking {self._remote.admin_url}")
        self._refreshing()
        self._following()
        self.set_interval(REDRAW_S, self._redraw)

    def on_resize(self) -> None:
        self._draw()

    def grid(self, name: str) -> Grid:
        """The table `brokers`, `bundles` or `moves`."""
        return self._grids[name]

    def _tell(self, *lines: str) -> None:
        head = Text("\n".join(lines))
        if lines[0].startswith(("ERROR", "WARNING")):
            head.stylize("bold red" if lines[0].startswith("ERROR") else "bold yellow", 0, len(lines[0]))
        self._head.update(head)

    @work
    async def _refreshing(self) -> None:
        while True:
            self._again.clear()
            try:
                self._seen = await asking.seen(self._remote)
                self._tell(wrong(self._seen.findings), *headline(self._seen.balancing))
                filters, after = self._wanted, self._pages[-1]
                found, following = await asking.page(self._remote, filters, after)
            except click.ClickException as error:
                self._tell(one_line(error.message), "trying again")
            else:
                if (filters, after) == (self._wanted, self._pages[-1]):
                    self._bundles, self._next = {bundle["bundle"]: bundle for bundle in found}, following
            self._draw()
            try:
                async with asyncio.timeout(self._every_s):
                    await self._again.wait()
            except TimeoutError:
                continue

    @work
    async def _following(self) -> None:
        moves = self.grid("moves")

        def broken(why: str) -> None:
            moves.border_subtitle = escape(f" {one_line(why)} ") if why else ""

        while True:
            try:
                since = await asking.revision(self._remote, self._watched)
                async with aclosing(events(self._remote, self._watched, since, broken)) as found:
                    async for kind, _, data in found:
                        broken("")
                        if kind == "change":
                            self._take(data)
            except click.ClickException as error:
                broken(error.message)
            await asyncio.sleep(self._every_s)

    def _take(self, change: dict[str, Any]) -> None:
        self._moves.tell(change)
        self._changed = True
        for step in change["bundles"]:
            after = step["after"]
            if after is not None and after["bundle"] in self._bundles:
                now = {name: after[name] for name in ("state", "owner", "target")}
                self._bundles[after["bundle"]] |= {**now, "owner_live": True}

    def _redraw(self) -> None:
        if self._changed:
            self._changed = False
            self._draw()

    def _draw(self) -> None:
        columns, seen = self.size.width, self._seen
        self.grid("brokers").border_title = " Brokers, what is wrong first "
        self.grid("brokers").show(brokers_table(seen.brokers, seen.usage, seen.balancing, columns))
        self.grid("moves").show(self._moves.table(columns))
        bundles = self.grid("bundles")
        wanted, rows = self._wanted, self._bundles.values()
        bundles.show(bundles_table(by_attention(rows) if wanted.order == "name" else rows, columns))
        page = f"page {len(self._pages)} (] [)" if self._next or len(self._pages) > 1 else None
        what = "Hottest bundles" if wanted.order == "load" else "Bundles, what is wrong first"
        title = " · ".join(filter(None, (what, wanted.namespace, wanted.owner, wanted.state, page)))
        bundles.border_title = escape(f" {title} ")
        bundles.border_subtitle = "" if self._bundles else " none "

    # --- what keys do

    def _bundle(self) -> str | None:
        """The chosen bundle; in the table of moves, the one that moved."""
        moves = self.grid("moves")
        return moves.chosen if moves.has_focus else self.grid("bundles").chosen

    def _broker(self) -> str | None:
        chosen = self.grid("brokers").chosen
        return chosen.rpartition("#")[0] if chosen else None

    @work
    async def action_transfer(self) -> None:
        name = self._bundle()
        bundle = self._bundles.get(name or "")
        if name is None:
            self._refuse("no bundle is chosen")
            return
        owner = bundle["owner"] if bundle else None
        others = [each["broker"] for each in self._seen.brokers if each["registered"] and each["broker"] != owner]
        if not others:
            self._refuse("there is no other broker")
            return
        to = await self.push_screen_wait(Pick(f"Where shall {name} go?", others))
        if to is not None and await self._sure(f"This moves {name} from {owner or 'no broker'} to {to}"):
            await self._do(asking.unload(self._remote, Bundle.parse(name), to), f"{name} was moved to {to}")

    @work
    async def action_unload(self) -> None:
        name = self._bundle()
        if name is None:
            self._refuse("no bundle is chosen")
        elif await self._sure(f"This takes {name} from its owner"):
            await self._do(asking.unload(self._remote, Bundle.parse(name), None), f"{name} was unloaded")

    @work
    async def action_drain(self) -> None:
        name = self._broker()
        found = next((each for each in self._seen.brokers if each["broker"] == name), None)
        if name is None or found is None:
            self._refuse("no broker is chosen")
        elif found["draining"]:
            if await self._sure(f"This ends the drain of {name}: it takes bundles again"):
                await self._do(asking.undrain(self._remote, name), f"{name} takes bundles again")
        elif await self._sure(f"This moves all bundles of {name} away; it takes no more"):
            await self._do(asking.drain(self._remote, name), f"{name} is draining")

    @work
    async def action_explain(self) -> None:
        await self._explain(self._broker() if self.grid("brokers").has_focus else self._bundle())

    async def _explain(self, subject: str | None) -> None:
        if subject is None:
            self._refuse("nothing is chosen")
            return
        try:
            text = await asking.explanation(self._remote, subject)
        except click.ClickException as error:
            self._refuse(error.message)
        else:
            await self.push_screen_wait(Page(subject, text))

    @work
    async def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        if event.data_table.id == "brokers":
            self._filter(msgspec.structs.replace(self._wanted, owner=self._broker()))
        else:
            await self._explain(self._bundle())

    @work
    async def action_namespace(self) -> None:
        before = self._wanted.namespace or ""
        found = await self.push_screen_wait(Write("Only bundles of which namespace? Nothing: of all.", before))
        if found is None:
            return
        try:
            namespace = NAMESPACE.convert(found, None, None) if found else None
        except click.ClickException as error:
            self._refuse(error.message)
        else:
            self._filter(msgspec.structs.replace(self._wanted, namespace=namespace))

    @work
    async def action_state(self) -> None:
        found = await self.push_screen_wait(
            Pick("Only bundles in which state?", [ALL, *(state.value for state in State)])
        )
        if found is not None:
            self._filter(msgspec.structs.replace(self._wanted, state=None if found == ALL else found))

    def action_order(self) -> None:
        """The hottest bundles, or all by name."""
        order = "name" if self._wanted.order == "load" else "load"
        self._filter(msgspec.structs.replace(self._wanted, order=order))

    def action_everything(self) -> None:
        self._filter(Filters())

    def action_turn(self, by: int) -> None:
        """The next page, or the one before."""
        if by > 0 and self._next is not None:
            self._show_page([*self._pages, self._next])
        elif by < 0 and len(self._pages) > 1:
            self._show_page(self._pages[:-1])

    def action_explain_wrong(self) -> None:
        self.push_screen(Page("What is wrong", all_wrong(self._seen.findings or [])))

    def action_explain_keys(self) -> None:
        self.push_screen(Page("Keys", HELP))

    def _filter(self, filters: Filters) -> None:
        self._wanted = filters
        self._show_page([None])

    def _show_page(self, pages: Sequence[str | None]) -> None:
        self._pages, self._next, self._bundles = list(pages), None, {}
        self._draw()  # an empty table: the next page begins at its first row
        self._again.set()

    async def _sure(self, what: str) -> bool:
        return self._remote.yes or await self.push_screen_wait(Sure(what))

    async def _do(self, request: Awaitable[None], done: str) -> None:
        try:
            await request
        except Failed as error:
            self._refuse(error.message)
        else:
            self.notify(done, markup=False)
        self._again.set()

    def _refuse(self, why: str) -> None:
        self.notify(one_line(why), severity="error", markup=False, timeout=10)
