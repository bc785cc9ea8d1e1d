"""Conversations about pictures as tokens, as the chat template and the family's processor write them."""
from functools import lru_cache

from pictures import SHAPES, scene
from questions import KINDS, PAIRS, TALK

ROWS = 36                                 # that stand for a picture
LENGTH = 192                              # of a conversation in tokens, at most
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<end_of_utterance>", "<fake_token_around_image>", "<image>", "<global-img>")
TEMPLATE = ("<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}{% if message['content'][0]['type'] == 'image' %}{{':'}}"
            "{% else %}{{': '}}{% endif %}{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
            "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
            "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}")
ONE_WEIGHTS = {"colour": 3, "shape": 2, "where": 3, "at": 2, "count": 4, "exists": 3, "digit": 3, "size": 2, "relation": 7, "seen from": 5, "background": 1, "describe": 2}
PAIR_WEIGHTS = {"which": 6, "of one": 3, "both": 1, "which behind": 3, "behind one": 1}


def pick(r, weights):
    return r.choices(tuple(weights), tuple(weights.values()))[0]


def ask(r, scenes):
    """(kind, question, answer) of one scene or two."""
    kinds, weights = (KINDS, ONE_WEIGHTS) if len(scenes) == 1 else (PAIRS, PAIR_WEIGHTS)
    while True:
        kind = pick(r, weights)
        found = kinds[kind](r, scenes[0] if len(scenes) == 1 else scenes)
        if found:
            return kind, *found


class Writer:
    """Spells conversations. A tokenizer's pieces end where words do, so parts that begin with a space can be spelled apart."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.start, self.end, self.fake, self.image, self.whole = (tokenizer.token_to_id(token) for token in SPECIAL[1:])
        self.names = {name: tokenizer.token_to_id("Ġ" + name if name in SHAPES else name) for name in (*SHAPES, *"0123456789")}
        self.words = lru_cache(20000)(lambda text: tuple(tokenizer.encode(text, add_special_tokens=False).ids))

    def talk(self, pictures, turns, last, cells={}):
        """Tokens and, beside them, whether each is to be learned, and 1 + the cell of what a question's token names, by `cells`, or 0.

        `last`: the pictures stand behind the first question.
        """
        block = [self.fake, self.whole, *[self.image] * ROWS, self.fake] * pictures
        ids, learned, named = [self.start], [0], [0]
        for index, (question, answer) in enumerate(turns):
            line = "\n" if index else ""
            if index == 0 and pictures and not last: turn = [*self.words("User:"), *block, *self.words(question)]
            elif index == 0 and pictures: turn = [*self.words("User: " + question), *block]
            else: turn = [*self.words(f"{line}User: {question}")]
            turn += [self.end, *self.words("\nAssistant:")]
            said = [*self.words(" " + answer), self.end]
            if index and len(ids) + len(turn) + len(said) > LENGTH: break
            ids += turn + said
            learned += [0] * len(turn) + [1] * len(said)
            named += [0 if last and not index else cells.get(token, 0) for token in turn] + [0] * len(said)
        return ids, learned, named

    def cells(self, scene):
        """1 + the cell of what is alone of its kind, by the token that names it."""
        kinds = [thing.kind for thing in scene.things]
        return {self.names[thing.kind]: 1 + thing.cell for thing in scene.things if kinds.count(thing.kind) == 1}


def sample(r, pictures, turns=7):
    """Scenes and (question, answer) of them, never of those held out; or none and what is said without."""
    if pictures == 1 and r.random() < 0.01: return None, [r.choice(TALK)]
    scenes = [scene(r, False)] if pictures == 1 else [scene(r, False, 3) for _ in range(2)]
    said, asked = [], set()
    for _ in range(turns):
        _, question, answer = ask(r, scenes)
        if question not in asked:
            asked.add(question)
            said.append((question, answer))
    return scenes, said


def lines(r):
    """Text to make a tokenizer of."""
    for index in range(4000):
        for question, answer in sample(r, 1 + index % 2)[1]: yield f"User: {question}\nAssistant: {answer}"
