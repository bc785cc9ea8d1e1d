"""hanzo-see (models/hanzo-see) is asked about pictures that it was never trained on (tests/data/heldout_pictures.jsonl) through the official openai package:
at least 99 of 100 answers are right, and questions which of two pictures has something are answered the other way round where the pictures are.
usage: see_client.py HANZO_ENGINE_BINARY"""
import json, os, sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import openai

from engine import ROOT, Engine, check, run_checks

HELD_OUT = [json.loads(line) for line in open(os.path.join(ROOT, "tests/data/heldout_pictures.jsonl"))]


def ask(client, question, pictures):
    content = [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + picture}} for picture in pictures]
    content.append({"type": "text", "text": question})
    answer = client.chat.completions.create(model="hanzo-see", messages=[{"role": "user", "content": content}], max_tokens=60, temperature=0)
    return answer.choices[0].message.content.strip()


def asked(client, jobs):
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda job: ask(client, *job), jobs))


@check
def held_out_pictures_are_answered(client):
    found = asked(client, [(one["question"], one["pictures"]) for one in HELD_OUT])
    wrong = [(one["kind"], one["question"], one["answer"], said) for one, said in zip(HELD_OUT, found) if said != one["answer"]]
    for one in wrong: print("  wrong:", *one, sep=" | ")
    right = len(HELD_OUT) - len(wrong)
    assert right >= 0.99 * len(HELD_OUT), f"{right} of {len(HELD_OUT)}: {Counter(kind for kind, *_ in wrong)}"
    return f"{right} of {len(HELD_OUT)}"


@check
def pictures_in_each_others_place_are_told_apart(client):
    pairs = [one for one in HELD_OUT if "swapped" in one]
    found = asked(client, [(one["question"], one["pictures"][::-1]) for one in pairs])
    right = sum(said == one["swapped"] for one, said in zip(pairs, found))
    assert right >= 0.99 * len(pairs), f"{right} of {len(pairs)}"
    return f"{right} of {len(pairs)}"


if __name__ == "__main__":
    with Engine("--model", os.path.join(ROOT, "models/hanzo-see"), "--log-level", "warn") as engine:
        sys.exit(run_checks(openai.OpenAI(base_url=f"http://{engine.http}/v1", api_key="none")))
