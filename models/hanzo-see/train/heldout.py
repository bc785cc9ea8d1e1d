"""Writes tests/data/heldout_pictures.jsonl: 400 questions about pictures of scenes that training never sees.

    python heldout.py FILE

A line has the `kind` of question, `question`, `answer`, and `pictures` (PNG, in base64). Where a line has `swapped`, that is the
answer with both pictures in each other's place.
"""
import base64, io, json, random, sys

from pictures import SIDES, draw, scene
from questions import KINDS, NUMBERS, PAIRS

COUNTS = {"colour": 45, "shape": 35, "where": 45, "at": 35, "count": 50, "exists": 30, "digit": 40, "size": 20, "relation": 25, "background": 10, "describe": 15,
          "which": 35, "of one": 10, "both": 5}


def heldout(seed=20261126):
    """[(kind, question, answer, PNGs)], in an order drawn at random."""
    r = random.Random(seed)
    made = []
    for kind, count in COUNTS.items():
        found = {}
        while len(found) < count:
            scenes = [scene(r, True)] if kind in KINDS else [scene(r, True, 3) for _ in range(2)]
            asked = KINDS[kind](r, scenes[0]) if kind in KINDS else PAIRS[kind](r, scenes)
            if asked: found[repr(scenes) + asked[0]] = (kind, *asked, [png(draw(r, s, r.choice(SIDES))) for s in scenes])
        made += found.values()
    r.shuffle(made)
    return made


def png(picture):
    """With a palette: there are few colours."""
    file = io.BytesIO()
    picture.quantize(len(picture.getcolors(picture.width * picture.height)), dither=0).save(file, "PNG", optimize=True)
    return file.getvalue()


def line(kind, question, answer, pictures):
    found = {"kind": kind, "question": question, "answer": answer, "pictures": [base64.b64encode(picture).decode() for picture in pictures]}
    if kind == "which": found["swapped"] = NUMBERS[1 - NUMBERS.index(answer)]
    return found


if __name__ == "__main__":
    with open(sys.argv[1], "w") as file:
        for one in heldout(): file.write(json.dumps(line(*one)) + "\n")
