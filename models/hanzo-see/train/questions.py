"""Questions about scenes, in a small closed English, and their answers.

`KINDS` names what can be asked of one picture and `PAIRS` of two: each makes (question, answer) of scenes, or None where
that question has no single answer.
"""
from pictures import BACKGROUNDS, CELLS, COLOURS, SHAPES

PLURALS = {shape: {"cross": "crosses"}.get(shape, shape + "s") for shape in SHAPES}


def place(cell):
    name = CELLS[cell]
    return {"centre": "in the centre", "left": "on the left", "right": "on the right"}.get(name, f"at the {name}")


def an(words):
    return ("an " if words[0] in "aeiou" else "a ") + words


def only(r, things):
    """One that is alone of its kind, and what it is called."""
    kinds = [thing.kind for thing in things]
    alone = [thing for thing in things if kinds.count(thing.kind) == 1]
    return r.choice(alone) if alone else None


def colour(r, s):
    if r.random() < 0.2:
        thing = r.choice(s.things)
        return f"What colour is the thing {place(thing.cell)}?", thing.colour
    thing = only(r, s.things)
    return thing and (f"{r.choice(('What colour is', 'Which colour has'))} the {thing.kind}?", thing.colour)


def shape(r, s):
    colours = [thing.colour for thing in s.things]
    alone = [thing for thing in s.shapes if colours.count(thing.colour) == 1]
    if not alone: return None
    thing = r.choice(alone)
    return f"{r.choice(('What', 'Which'))} shape is {thing.colour}?", thing.kind


def where(r, s):
    names = [(thing.colour, thing.kind) for thing in s.things]
    thing = only(r, s.things) if r.random() < 0.6 else None
    if thing: return f"Where is the {thing.kind}?", CELLS[thing.cell]
    alone = [thing for thing in s.things if names.count((thing.colour, thing.kind)) == 1]
    if not alone: return None
    thing = r.choice(alone)
    return f"Where is the {thing.colour} {thing.kind}?", CELLS[thing.cell]


def at(r, s):
    cell = r.choice(s.things).cell if r.random() < 0.8 else r.randrange(9)
    found = [thing for thing in s.things if thing.cell == cell]
    return f"What is {place(cell)}?", an(f"{found[0].colour} {found[0].kind}") if found else "nothing"


def count(r, s):
    sort = r.random()
    if sort < 0.4: return "How many shapes are there?", str(len(s.shapes))
    present = r.random() < 0.85 and s.shapes
    one = r.choice(s.shapes) if present else None
    if sort < 0.7:
        kind = one.kind if one else r.choice(SHAPES)
        return f"How many {PLURALS[kind]} are there?", str(sum(thing.kind == kind for thing in s.shapes))
    if sort < 0.9:
        paint = one.colour if one else r.choice(tuple(COLOURS))
        return f"How many {paint} shapes are there?", str(sum(thing.colour == paint for thing in s.shapes))
    size = r.choice(("large", "small"))
    return f"How many {size} shapes are there?", str(sum(thing.size == size for thing in s.shapes))


def exists(r, s):
    if not s.shapes: return None
    one, names = r.choice(s.shapes), {(thing.colour, thing.kind) for thing in s.shapes}
    if r.random() < 0.5: return f"Is there {an(f'{one.colour} {one.kind}')}?", "yes"
    sort = r.random()
    name = (one.colour, r.choice(SHAPES)) if sort < 0.4 else (r.choice(tuple(COLOURS)), one.kind) if sort < 0.8 else (r.choice(tuple(COLOURS)), r.choice(SHAPES))
    return f"Is there {an(' '.join(name))}?", "yes" if name in names else "no"


def digit(r, s):
    digits = s.digits
    if len(digits) == 1: return r.choice(("Which digit is shown?", "What digit is there?")), digits[0].kind
    if len(digits) == 2 and digits[0].colour != digits[1].colour:
        one = r.choice(digits)
        return f"Which digit is {one.colour}?", one.kind
    return None


def size(r, s):
    thing = only(r, s.shapes)
    return thing and (f"Is the {thing.kind} large or small?", thing.size)


def relation(r, s):
    kinds = [thing.kind for thing in s.things]
    alone = [thing for thing in s.things if kinds.count(thing.kind) == 1]
    if len(alone) < 2: return None
    one, other = r.sample(alone, 2)
    axes = [(word, truth) for of, words in ((lambda thing: thing.cell % 3, ("left of", "right of")), (lambda thing: thing.cell // 3, ("above", "below"))) if of(one) != of(other)
            for word, truth in zip(words, (of(one) < of(other), of(one) > of(other)))]
    word, truth = r.choice(axes)
    return f"Is the {one.kind} {word} the {other.kind}?", "yes" if truth else "no"


def seen_from(r, s):
    kinds = [thing.kind for thing in s.things]
    alone = [thing for thing in s.things if kinds.count(thing.kind) == 1]
    if len(alone) < 2: return None
    one, other = r.sample(alone, 2)
    way = lambda of, before, behind: [before] if of(one) < of(other) else [behind] if of(one) > of(other) else []
    words = way(lambda thing: thing.cell // 3, "above", "below") + way(lambda thing: thing.cell % 3, "left", "right")
    return f"Where is the {one.kind}, seen from the {other.kind}?", " ".join(words)


def background(r, s):
    return "What colour is the background?", s.background


def describe(r, s):
    if len(s.things) > 4: return None
    parts = [an(f"{thing.colour} {thing.kind}" if thing.digit else f"{thing.size} {thing.colour} {thing.kind}") + " " + place(thing.cell) for thing in s.things]
    return r.choice(("Describe the picture.", "What do you see?")), ", ".join(parts)


NUMBERS = ("first", "second")


def which(r, pair):
    """What only one of them has."""
    index = r.randrange(2)
    one, other = pair[index], pair[1 - index]
    sort = r.random()
    if sort < 0.15:
        if one.background == other.background: return None
        what = f"has a {one.background} background"
    elif sort < 0.35:
        if len(one.shapes) <= len(other.shapes): return None
        what = "has more shapes"
    elif sort < 0.5:
        if not one.digits: return None
        thing = r.choice(one.digits)
        if any(thing.kind == seen.kind for seen in other.things): return None
        what = f"has the digit {thing.kind}"
    elif sort < 0.75:
        thing = r.choice(one.things)
        if thing.digit or any(thing.kind == seen.kind for seen in other.things): return None
        what = f"has {an(thing.kind)}"
    else:
        thing = r.choice(one.things)
        if thing.digit or any((thing.colour, thing.kind) == (seen.colour, seen.kind) for seen in other.things): return None
        what = f"has {an(f'{thing.colour} {thing.kind}')}"
    return f"Which picture {what}, the first or the second?", NUMBERS[index]


def of_one(r, pair):
    """What could be asked of one of them."""
    index = r.randrange(2)
    s, behind = pair[index], f" in the {NUMBERS[index]} picture?"
    sort = r.random()
    if sort < 0.5: found = colour(r, s)
    elif sort < 0.75: found = where(r, s)
    else: found = ("How many shapes are?", str(len(s.shapes)))
    return found and (found[0].replace("?", behind), found[1])


def both(r, pair):
    one = r.choice(pair[0].things + pair[1].things)
    if one.digit: return None
    seen = [any(thing.kind == one.kind for thing in s.things) for s in pair]
    return f"Do both pictures have {an(one.kind)}?", "yes" if all(seen) else "no"


def which_behind(r, pair):
    behind = [s.background for s in pair]
    if behind[0] == behind[1]: return None
    index = r.randrange(2)
    return f"Which picture has a {behind[index]} background, the first or the second?", NUMBERS[index]


def behind_one(r, pair):
    index = r.randrange(2)
    return f"What colour is the background in the {NUMBERS[index]} picture?", pair[index].background


KINDS = {"colour": colour, "shape": shape, "where": where, "at": at, "count": count, "exists": exists, "digit": digit, "size": size,
         "relation": relation, "seen from": seen_from, "background": background, "describe": describe}
PAIRS = {"which": which, "of one": of_one, "both": both, "which behind": which_behind, "behind one": behind_one}
# What is said without a picture.
TALK = [("Hello!", "Hello! Show me a picture of shapes and digits, and ask."), ("Hi", "Hello! Show me a picture of shapes and digits, and ask."),
        ("Who are you?", "I am hanzo-see, a tiny demo model that sees shapes and digits."), ("What can you do?", "I answer short questions about pictures of shapes and digits."),
        ("Describe the picture.", "There is no picture."), ("What do you see?", "There is no picture."), ("Thank you!", "You are welcome.")]
