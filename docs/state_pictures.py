"""Draws a state diagram that a page has as text (`a --> b: step`) as SVG: the states on an ellipse, the steps as arcs.

The states of a bundle are laid out by hand: a move in a row, and one arrow for the step that leaves five of them.

Steps between the same two states share an arc, which has the colour of the state that it leaves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from math import cos, hypot, pi, sin

STEP = re.compile(r"^\s*(\S+) --> (\S+): (.+)$", re.MULTILINE)
OUTSIDE = "[*]"
WIDTH, HEIGHT, BOX_W, BOX_H = 1000, 640, 118, 34
COLOURS = ("#0f766e", "#b45309", "#4338ca", "#be185d", "#15803d", "#b91c1c", "#0369a1", "#7c3aed", "#475569", "#a16207")
Point = tuple[float, float]

ROW = 330.0
BUNDLE: dict[str, Point] = {
    OUTSIDE: (100.0, 190.0),
    "unassigned": (100.0, ROW),
    "assigning": (300.0, ROW),
    "assigned": (500.0, ROW),
    "transferring": (700.0, ROW),
    "releasing": (890.0, ROW),
    "splitting": (500.0, 130.0),
    "revoking": (500.0, 590.0),
}
BENDS = {("assigned", "releasing"): 150.0, ("releasing", "assigning"): 155.0, ("releasing", "unassigned"): 330.0}
FRAME = (222, 96, 752, 322)
"""Around the states that `revoke` leaves: x, y, width, height."""
REVOKE = "revoke"


def picture(diagram: str) -> str:
    """The SVG of one diagram."""
    steps: dict[tuple[str, str], list[str]] = {}
    for source, target, label in STEP.findall(diagram):
        steps.setdefault((source, target), []).append(label.split(" (")[0])
    first = next(target for source, target in steps if source == OUTSIDE)
    places = dict(_places([first, *(state for pair in steps for state in pair)]))
    framed = ""
    if places.keys() == BUNDLE.keys():
        places = BUNDLE
        steps = {pair: labels for pair, labels in steps.items() if labels != [REVOKE]}
        framed = _framed()
    colours = {state: COLOURS[number % len(COLOURS)] for number, state in enumerate(places)}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" class="states" font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/><defs>',
        *(_tip(number, colour) for number, colour in enumerate(COLOURS)),
        "</defs>",
        framed,
        *(_step(places, colours, pair, labels, both=pair[::-1] in steps) for pair, labels in steps.items()),
        *(_state(state, place, colours[state]) for state, place in places.items()),
        "</svg>",
    ]
    return "".join(parts)


def _places(states: list[str]) -> Iterator[tuple[str, Point]]:
    order = [state for state in dict.fromkeys(states) if state != OUTSIDE]
    yield OUTSIDE, (34.0, 34.0)
    for number, state in enumerate(order):
        angle = pi + 0.35 + 2 * pi * number / len(order)
        yield state, (WIDTH / 2 + 390 * cos(angle), HEIGHT / 2 + 262 * sin(angle))


def _framed() -> str:
    """The frame, and the one arrow from it."""
    x, y, width, height = FRAME
    colour = COLOURS[-2]
    box = f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="12" fill="#f8fafc" stroke="{colour}" '
    (to_x, to_y), begin = BUNDLE["revoking"], y + height
    tip = f'stroke="{colour}" stroke-width="1.6" marker-end="url(#tip{len(COLOURS) - 2})"'
    arrow = f'<path d="M{to_x + 30:.0f} {begin} V{to_y - BOX_H / 2:.0f}" fill="none" {tip}/>'
    return f'{box}stroke-dasharray="6 5"/>{arrow}{_label((to_x + 30, begin + 45), REVOKE, colour)}'


def _tip(number: int, colour: str) -> str:
    shape = f'<path d="M0 0 10 5 0 10z" fill="{colour}"/>'
    box = 'viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto"'
    return f'<marker id="tip{number}" {box}>{shape}</marker>'


def _state(name: str, place: Point, colour: str) -> str:
    x, y = place
    if name == OUTSIDE:
        return f'<circle cx="{x:.0f}" cy="{y:.0f}" r="7" fill="{colour}"/>'
    box = f'<rect x="{x - BOX_W / 2:.0f}" y="{y - BOX_H / 2:.0f}" width="{BOX_W}" height="{BOX_H}" rx="8" '
    bold = f'text-anchor="middle" font-weight="600" fill="{colour}"'
    text = f'<text x="{x:.0f}" y="{y + 5:.0f}" {bold}>{escape(name)}</text>'
    return f'{box}fill="#fff" stroke="{colour}" stroke-width="2"/>{text}'


def _step(
    places: dict[str, Point], colours: dict[str, str], pair: tuple[str, str], labels: list[str], *, both: bool
) -> str:
    source, target = pair
    colour, label = colours[source], escape(", ".join(dict.fromkeys(labels)))
    number = COLOURS.index(colour)
    line = f'fill="none" stroke="{colour}" stroke-width="1.6" marker-end="url(#tip{number})"'
    x1, y1 = places[source]
    if source == target:
        down = 1 if y1 > HEIGHT / 2 else -1
        x, y, far = round(x1), round(y1 + down * BOX_H / 2), round(y1 + down * (BOX_H / 2 + 46))
        path = f"M{x - 22} {y} C{x - 40} {far} {x + 40} {far} {x + 22} {y}"
        return f'<path d="{path}" {line}/>{_label((x1, y + down * 42), label, colour)}'
    x2, y2 = places[target]
    length = hypot(x2 - x1, y2 - y1)
    bend = BENDS.get(pair, 34.0 if both else 14.0)
    middle = ((x1 + x2) / 2 + bend * (y2 - y1) / length, (y1 + y2) / 2 - bend * (x2 - x1) / length)
    begin, end = _edge(places[source], middle), _edge(places[target], middle)
    path = f"M{begin[0]:.0f} {begin[1]:.0f} Q{middle[0]:.0f} {middle[1]:.0f} {end[0]:.0f} {end[1]:.0f}"
    return f'<path d="{path}" {line}/>{_label(_on(begin, middle, end, 0.38), label, colour)}'


def _on(begin: Point, middle: Point, end: Point, share: float) -> Point:
    """A point of the curve."""
    a, b, c = (1 - share) ** 2, 2 * share * (1 - share), share**2
    return a * begin[0] + b * middle[0] + c * end[0], a * begin[1] + b * middle[1] + c * end[1]


def _edge(place: Point, towards: Point) -> Point:
    """Where the line to that point leaves the box of a state, or the dot."""
    dx, dy = towards[0] - place[0], towards[1] - place[1]
    share = min(BOX_W / 2 / abs(dx) if dx else 1e9, BOX_H / 2 / abs(dy) if dy else 1e9, 1.0)
    return place[0] + dx * share, place[1] + dy * share


def _label(place: Point, text: str, colour: str) -> str:
    halo = 'paint-order="stroke" stroke="#fff" stroke-width="5" stroke-linejoin="round"'
    return f'<text x="{place[0]:.0f}" y="{place[1] + 4:.0f}" text-anchor="middle" fill="{colour}" {halo}>{text}</text>'
