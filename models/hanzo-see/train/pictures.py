"""Scenes of shapes and digits, and pictures of them.

A scene is a background and things in different cells of a 3 x 3 grid. A sixteenth of all scenes, told by a checksum of what is
in them, is held out: `scene(r, held=False)` never makes one of those, whatever the seed.
"""
import math, zlib
from functools import lru_cache
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont

FRAME = 96                                # pixels of the side that the model sees
SIDES = (128, 144, 160, 192)              # of pictures, before the processor makes them so large
SHAPES = ("circle", "square", "triangle", "star", "cross", "ring", "diamond")
COLOURS = {"red": (220, 40, 40), "green": (40, 160, 60), "blue": (40, 80, 220), "yellow": (240, 215, 40), "orange": (240, 140, 30),
           "purple": (140, 50, 170), "black": (20, 20, 20), "white": (245, 245, 245)}
BACKGROUNDS = {"white": (245, 245, 245), "grey": (135, 135, 135), "black": (20, 20, 20)}
CELLS = ("top left", "top", "top right", "left", "centre", "right", "bottom left", "bottom", "bottom right")
SIZES = {"large": (0.125, 0.145), "small": (0.065, 0.078)}    # from the middle to the edge, of the side


class Thing(NamedTuple):
    kind: str      # a shape, or a digit
    colour: str
    cell: int
    size: str      # of a digit always large

    @property
    def digit(self):
        return self.kind.isdigit()


class Scene(NamedTuple):
    background: str
    things: tuple  # by cell

    @property
    def shapes(self):
        return [thing for thing in self.things if not thing.digit]

    @property
    def digits(self):
        return [thing for thing in self.things if thing.digit]


def is_held(scene):
    return zlib.crc32(repr(tuple(map(tuple, scene.things))).encode() + scene.background.encode()) % 16 == 0


def scene(r, held, most=6):
    while True:
        found = any_scene(r, most)
        if is_held(found) == held:
            return found


def any_scene(r, most):
    background = r.choice(tuple(BACKGROUNDS))
    colours = [colour for colour in COLOURS if colour != background]
    shapes, digits = r.choice((1, 1, 2, 2, 3, 3, 4, 5)), r.choice((0, 0, 0, 1, 1, 2))
    if r.random() < 0.12:
        shapes, digits = 0, r.choice((1, 2))
    shapes, digits = min(shapes, most - min(digits, 1)), min(digits, 1 if most < 4 else 2)
    # Now and then the same shapes and colours again, so that there is something to count.
    kinds = r.sample(SHAPES, r.choice((1, 2))) if r.random() < 0.35 else SHAPES
    paints = r.sample(colours, 2) if r.random() < 0.25 else colours
    cells = r.sample(range(9), min(shapes + digits, most))
    things = [Thing(str(r.randrange(10)), r.choice(colours), cell, "large") if index < digits else
              Thing(r.choice(kinds), r.choice(paints), cell, r.choice(("large", "large", "small"))) for index, cell in enumerate(cells)]
    return Scene(background, tuple(sorted(things, key=lambda thing: thing.cell)))


def arc(x, y, a, b, start, end, steps=14):
    turn = [math.radians(start + (end - start) * step / steps) for step in range(steps + 1)]
    return [(x + a * math.cos(angle), y + b * math.sin(angle)) for angle in turn]


# Lines of digits drawn by hand, in a box from -1 to 1 downwards.
STROKES = {
    "0": [arc(0, 0, 0.6, 1, 0, 360)],
    "1": [[(-0.35, -0.6), (0.05, -1), (0.05, 1)]],
    "2": [arc(0, -0.45, 0.58, 0.55, -170, 35) + [(-0.6, 1), (0.65, 1)]],
    "3": [arc(-0.05, -0.5, 0.55, 0.5, -160, 90) + arc(-0.05, 0.48, 0.62, 0.52, -90, 155)],
    "4": [[(0.3, 1), (0.3, -1), (-0.65, 0.35), (0.7, 0.35)]],
    "5": [[(0.55, -1), (-0.45, -1), (-0.52, -0.12)] + arc(-0.05, 0.35, 0.62, 0.65, -125, 145)],
    "6": [[(0.4, -1), (-0.2, -0.45), (-0.55, 0.25)], arc(0, 0.4, 0.58, 0.6, 0, 360)],
    "7": [[(-0.6, -1), (0.6, -1), (-0.15, 1)]],
    "8": [arc(0, -0.5, 0.48, 0.48, 0, 360), arc(0, 0.48, 0.6, 0.52, 0, 360)],
    "9": [arc(0, -0.4, 0.58, 0.6, 0, 360), [(0.57, -0.35), (0.45, 0.35), (-0.1, 1)]],
}
STAR = [(-90 + 36 * point, 1.08 if point % 2 == 0 else 0.45) for point in range(10)]
POLYGONS = {
    "square": [(45 + 90 * corner, 1.18) for corner in range(4)],
    "triangle": [(-90 + 120 * corner, 1.15) for corner in range(3)],
    "star": STAR,
    "diamond": [(0, 0.68), (90, 1.12), (180, 0.68), (270, 1.12)],
    "cross": [(math.degrees(math.atan2(y, x)), math.hypot(x, y)) for x, y in
              ((-.3, -1), (.3, -1), (.3, -.3), (1, -.3), (1, .3), (.3, .3), (.3, 1), (-.3, 1), (-.3, .3), (-1, .3), (-1, -.3), (-.3, -.3))],
}


@lru_cache(None)
def font(pixels):
    return ImageFont.load_default(pixels)


def near(r, colour):
    return tuple(min(255, max(0, part + r.randint(-12, 12))) for part in colour)


def draw(r, scene, side):
    """A picture of so many pixels a side. What `r` draws is places within cells, turns, shades and hands."""
    behind = near(r, BACKGROUNDS[scene.background])
    picture = Image.new("RGB", (side, side), behind)
    pen = ImageDraw.Draw(picture)
    pen.fontmode = "1"
    for thing in scene.things:
        x, y = (side * ((at + 0.5) / 3 + r.uniform(-0.02, 0.02)) for at in (thing.cell % 3, thing.cell // 3))
        radius, paint = side * r.uniform(*SIZES[thing.size]), near(r, COLOURS[thing.colour])
        if thing.digit:
            if r.random() < 0.5:
                pen.text((x, y), thing.kind, paint, font(round(radius * 2.5)), anchor="mm")
            else:
                slant, width = r.uniform(-0.15, 0.15), max(2, round(side * r.uniform(0.022, 0.036)))
                for line in STROKES[thing.kind]:
                    pen.line([(x + radius * 0.9 * (u - slant * v), y + radius * 0.9 * v) for u, v in line], paint, width, joint="curve")
        elif thing.kind in ("circle", "ring"):
            pen.ellipse((x - radius, y - radius, x + radius, y + radius), paint)
            if thing.kind == "ring":
                hole = radius * r.uniform(0.52, 0.62)
                pen.ellipse((x - hole, y - hole, x + hole, y + hole), behind)
        else:
            turn = r.uniform(-10, 10)
            pen.polygon([(x + radius * long * math.cos(math.radians(angle + turn)), y + radius * long * math.sin(math.radians(angle + turn)))
                         for angle, long in POLYGONS[thing.kind]], paint)
    return picture
