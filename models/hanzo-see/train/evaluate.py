"""Answers the held-out questions with the transformers library: python evaluate.py FOLDER [DEVICE]"""
import io, json, sys, time
from collections import Counter
from pathlib import Path

from PIL import Image

from heldout import heldout


def told(said, started):
    """Prints what is right of [(kind, question, answer, text)], and says which share."""
    right, of = Counter(kind for kind, _, answer, text in said if text == answer), Counter(kind for kind, *_ in said)
    for kind in of: print(f"{kind:12} {right[kind]}/{of[kind]}")
    total, all_of = (sum(part.values()) - part["swapped"] for part in (right, of))
    print(f"total {total}/{all_of} = {100 * total / all_of:.2f} %, the other way round {right['swapped']}/{of['swapped']}, {time.time() - started:.1f} s", flush=True)
    for one in [one for one in said if one[2] != one[3]][:40]: print("wrong:", *one, sep=" | ")
    return {"right": dict(right), "of": dict(of)}


def quickly(net, tokenizer, device, most=60):
    """The same by training's own arithmetic, all at once."""
    import numpy as np, torch
    import model as m
    from pictures import FRAME
    from talks import LENGTH, Writer
    started, writer, said = time.time(), Writer(tokenizer), []
    for number in (1, 2):
        some = [job for job in jobs(None) if len(job[3]) == number]
        prompts = [[*writer.talk(number, [(question, "")], False)[0]] for _, question, _, _ in some]
        # Without the empty answer and its end.
        prompts = [prompt[:len(prompt) - 1 - len(writer.words(" "))] for prompt in prompts]
        ids = torch.full((len(some), LENGTH), tokenizer.token_to_id("<|endoftext|>"), device=device)
        for row, prompt in enumerate(prompts): ids[row, :len(prompt)] = torch.tensor(prompt, device=device)
        frames = [np.asarray(picture.resize((FRAME, FRAME), Image.Resampling.LANCZOS)) for job in some for picture in job[3]]
        ends, rows = torch.tensor([len(prompt) for prompt in prompts], device=device), torch.arange(len(some), device=device)
        with torch.no_grad():
            seen = m.tower(net, torch.from_numpy(np.stack(frames)).to(device).permute(0, 3, 1, 2).float() / 127.5 - 1)
            for step in range(most):
                hidden = m.text(net, ids, seen)[0][rows, ends - 1 + step]
                ids[rows, ends + step] = (hidden @ net.lm_head.weight.T).argmax(-1)
        for job, row, end in zip(some, ids.tolist(), ends.tolist()):
            answer = row[end:end + most]
            answer = answer[:answer.index(writer.end)] if writer.end in answer else answer
            said.append((*job[:3], tokenizer.decode(answer).strip()))
    return told(said, started)


def jobs(count):
    """[(kind, question, answer, pictures)], questions which of two pictures the other way round too."""
    made = []
    for kind, question, answer, pictures in heldout()[:count]:
        pictures = [Image.open(io.BytesIO(picture)).convert("RGB") for picture in pictures]
        made.append((kind, question, answer, pictures))
        if kind == "which": made.append(("swapped", question, {"first": "second", "second": "first"}[answer], pictures[::-1]))
    return made


def evaluate(folder, device="cpu", count=None, batch=100):
    import torch
    from transformers import AutoModelForImageTextToText, AutoProcessor
    started = time.time()
    processor = AutoProcessor.from_pretrained(folder, backend="pil")
    processor.tokenizer.padding_side = "left"
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).to(device).eval()
    said = []
    for number in (1, 2):
        all_of = sorted((job for job in jobs(count) if len(job[3]) == number), key=lambda job: len(job[1]))
        for at in range(0, len(all_of), batch):
            some = all_of[at:at + batch]
            texts = [processor.apply_chat_template([{"role": "user", "content": [{"type": "image"}] * number + [{"type": "text", "text": job[1]}]}], add_generation_prompt=True) for job in some]
            inputs = processor(text=texts, images=[job[3] for job in some], return_tensors="pt", padding=True).to(device)
            with torch.no_grad(): out = model.generate(**inputs, max_new_tokens=60, do_sample=False)
            said += [(*job[:3], processor.decode(ids, skip_special_tokens=True).strip()) for job, ids in zip(some, out[:, inputs["input_ids"].shape[1]:])]
    found = told(said, started)
    (Path(folder) / "evaluation.json").write_text(json.dumps(found | {"wrong": [one for one in said if one[2] != one[3]]}, indent=1) + "\n")


if __name__ == "__main__":
    evaluate(sys.argv[1], *sys.argv[2:])
