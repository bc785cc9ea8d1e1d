"""Trains hanzo-see on one GPU in minutes: python train.py --seconds 220 --out FOLDER

Worker processes draw pictures and write talks about them, on all cores but one; where they are slower than the GPU, older
pictures are seen again. `--seconds` is all of it, the evaluation behind it too; the rate of learning follows the clock.
Without a GPU it does the same more slowly.
"""
import argparse, json, math, mmap, multiprocessing as mp, os, queue, random, time
from pathlib import Path

import numpy as np
from PIL import Image
from tokenizers import Tokenizer

from pictures import BACKGROUNDS, COLOURS, FRAME, SHAPES, SIDES, draw
from talks import LENGTH, ROWS, Writer, sample

ONES, TWOS = 96, 32                       # talks of a block: about one picture, and about two
TALKS, PICTURES = ONES + TWOS, ONES + 2 * TWOS
# What a block has, in the order of its bytes. `things` are by cell: which kind (0 none), colour, size. `named`: 1 + the cell of what
# a question's token names, or 0.
PARTS = {"pixels": ((PICTURES, FRAME, FRAME, 3), np.uint8), "ids": ((TALKS, LENGTH), np.int16), "learned": ((TALKS, LENGTH), np.uint8), "named": ((TALKS, LENGTH), np.uint8),
         "things": ((PICTURES, 9, 3), np.uint8)}
BYTES = sum(math.prod(shape) * np.dtype(kind).itemsize for shape, kind in PARTS.values())
KINDS, PAINTS = (*SHAPES, *"0123456789"), tuple(COLOURS)
RATE, DECAY, WARM, BLOCKS_KEPT = 1.2e-3, 0.05, 0.03, 1500


def parts(memory, slot):
    found, at = {}, slot * BYTES
    for name, (shape, kind) in PARTS.items():
        found[name] = np.frombuffer(memory, kind, math.prod(shape), at).reshape(shape)
        at += found[name].nbytes
    return found


def fill(block, r, writer):
    """One block, drawn anew."""
    block["ids"][:], block["learned"][:], block["named"][:], block["things"][:] = writer.tokenizer.token_to_id("<|endoftext|>"), 0, 0, 0
    picture = 0
    for row in range(TALKS):
        while True:
            count = 1 if row < ONES else 2
            scenes, said = sample(r, count)
            cells = writer.cells(scenes[0]) if scenes and count == 1 else {}
            ids, learned, named = writer.talk(count if scenes else 0, said, r.random() < 0.1, cells)
            if len(ids) <= LENGTH: break
        # Every talk of a block has its pictures: behind one about none there is an empty one, which nothing is learned of.
        if not scenes:
            block["pixels"][picture] = 255
            ids, learned, named = (part + [more] * ROWS for part, more in ((ids, writer.image), (learned, 0), (named, 0)))
        for index, scene in enumerate(scenes or ()):
            image = draw(r, scene, r.choice(SIDES)).resize((FRAME, FRAME), Image.Resampling.LANCZOS)
            block["pixels"][picture + index] = np.asarray(image)
            for thing in scene.things:
                block["things"][picture + index, thing.cell] = 1 + KINDS.index(thing.kind), PAINTS.index(thing.colour), thing.size == "large"
        picture += count
        block["ids"][row, :len(ids)], block["learned"][row, :len(ids)], block["named"][row, :len(ids)] = ids, learned, named


def work(memory, free, full, words, seed):
    r, writer = random.Random(seed), Writer(Tokenizer.from_str(words))
    while True:
        slot = free.get()
        fill(parts(memory, slot), r, writer)
        full.put(slot)


def main():
    started = time.time()
    args = argparse.ArgumentParser()
    args.add_argument("--seconds", type=float, default=220)
    args.add_argument("--out", required=True)
    args.add_argument("--blocks", type=int, default=4, help="of a step")
    args.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    args.add_argument("--reserve", type=float, default=25, help="seconds kept for saving and evaluation")
    args.add_argument("--seed", type=int, default=1)
    args.add_argument("--resume", help="weights.pt of an earlier run")
    args = args.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    folder = Path(args.out)
    folder.mkdir(parents=True, exist_ok=True)

    made = Path(__file__).parent.parent / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(made)) if made.exists() else __import__("model").make_tokenizer()
    tokenizer.no_padding(), tokenizer.no_truncation()
    slots = args.workers * 4
    memory, context = mmap.mmap(-1, slots * BYTES), mp.get_context("fork")
    free, full = context.Queue(), context.Queue()
    for slot in range(slots): free.put(slot)
    makers = [context.Process(target=work, args=(memory, free, full, tokenizer.to_str(), args.seed * 1000 + index), daemon=True) for index in range(args.workers)]
    for maker in makers: maker.start()

    import torch, torch.nn.functional as F
    import model as m
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = m.make_model(tokenizer).to(device)
    # Says of every cell what is in it, so that the tower learns before the text model knows what to ask. It is thrown away.
    teller = torch.nn.Linear(m.TEXT["hidden_size"], 1 + len(KINDS) + len(PAINTS) + 2).to(device)
    # Says where the thing is that a word of a question names, halfway through the text model: what relations are computed from. Thrown away too.
    pointer = torch.nn.Linear(m.TEXT["hidden_size"], 9).to(device)
    parts_of = {"net": net, "teller": teller, "pointer": pointer}
    if args.resume:
        earlier = torch.load(args.resume, map_location=device)
        for part, state in earlier.items(): parts_of[part].load_state_dict(state)
    named = [(f"{part}.{name}", p) for part, module in parts_of.items() for name, p in module.named_parameters()]
    many = lambda name, p: p.dim() > 1 and "embed" not in name
    optimizer = torch.optim.AdamW([{"params": [p for name, p in named if many(name, p)], "weight_decay": DECAY}, {"params": [p for name, p in named if not many(name, p)], "weight_decay": 0.0}],
                                  lr=RATE, betas=(0.9, 0.98), eps=1e-8, fused=device == "cuda")
    print(f"{sum(p.numel() for p in net.parameters())} parameters, {args.workers} workers, {device}, set up after {time.time() - started:.1f} s", flush=True)

    def losses(pixels, ids, learned, named, things):
        x = pixels.permute(0, 3, 1, 2).float() / 127.5 - 1
        rows = m.tower(net, x)
        squares = rows.unflatten(1, (3, 2, 3, 2)).mean((2, 4)).flatten(1, 2)       # (pictures, 9, hidden)
        told = teller(squares).float()
        ids = ids.long()
        hidden, middle = m.text(net, ids, rows)
        pointed = pointer(F.rms_norm(middle, middle.shape[-1:])).float()
        point = F.cross_entropy(pointed.flatten(0, 1), named.long().flatten() - 1, ignore_index=-1)
        logits = F.linear(hidden[:, :-1], net.lm_head.weight).float()
        mask = learned[:, 1:].float()
        each = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none") * mask.flatten()
        kinds, paints, sizes = told.split((1 + len(KINDS), len(PAINTS), 2), 2)
        things = things.long()
        there = (things[..., 0] > 0).float()
        one = lambda scores, of: F.cross_entropy(scores.flatten(0, 1), things[..., of].flatten(), reduction="none")
        tell = one(kinds, 0).mean() + ((one(paints, 1) + one(sizes, 2)) * there.flatten()).sum() / there.sum().clamp(min=1)
        return each.sum() / mask.sum(), tell, point

    kept, steps, new, shown = [], 0, 0, time.time()
    begun = time.time()
    while True:
        progress = (time.time() - begun) / max(1.0, args.seconds - args.reserve - (begun - started))
        if progress >= 1: break
        blocks = []
        while len(blocks) < args.blocks:
            try:
                slot = full.get(block=not kept and not blocks)
            except queue.Empty:
                slot = None
            if slot is None:
                blocks.append(random.choice(kept))
                continue
            block = {name: torch.from_numpy(part.copy()).to(device) for name, part in parts(memory, slot).items()}
            free.put(slot)
            new += 1
            blocks.append(block)
            if len(kept) < BLOCKS_KEPT: kept.append(block)
            else: kept[random.randrange(BLOCKS_KEPT)] = block
        batch = [torch.cat([block[name] for block in blocks]) for name in PARTS]
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1, progress / WARM + 0.01) * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress)))
        with torch.autocast(device, torch.bfloat16):
            said, tell, point = losses(*batch)
        loss = said + 0.5 * max(0.0, 1 - progress / 0.7) * (tell + point)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_([p for _, p in named], 1.0)
        optimizer.step()
        steps += 1
        if time.time() - shown > 5 or steps in (1, 10):
            shown = time.time()
            print(f"{shown - started:6.1f} s  step {steps}  progress {progress:.3f}  loss {said.item():.4f}  telling {tell.item():.4f}  pointing {point.item():.4f}  new blocks {new} of {steps * args.blocks}", flush=True)
    took = time.time() - begun
    for maker in makers: maker.terminate()
    figures = {"steps": steps, "seconds": round(took, 1), "talks": steps * args.blocks * TALKS, "pictures_drawn": new * PICTURES, "pictures_seen": steps * args.blocks * PICTURES, "loss": round(said.item(), 4)}
    print(json.dumps(figures), flush=True)
    torch.save({part: module.state_dict() for part, module in parts_of.items()}, folder / "weights.pt")
    (folder / "training.json").write_text(json.dumps(figures) + "\n")
    import evaluate
    net = net.bfloat16()
    if device == "cuda": evaluate.quickly(net.float(), tokenizer, device)
    m.save(net.bfloat16(), tokenizer, folder)
    print(f"saved after {time.time() - started:.1f} s", {file.name: file.stat().st_size for file in sorted(folder.iterdir())}, flush=True)
    evaluate.evaluate(folder, device, count=None if device == "cuda" else 40)
    print(f"ended after {time.time() - started:.1f} s", flush=True)


if __name__ == "__main__":
    main()
