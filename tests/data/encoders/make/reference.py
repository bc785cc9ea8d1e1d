"""What every case shares: random weights, the files of a checkpoint, golden values and the checks on them."""
import atexit, copy, json, logging, os, shutil, tempfile
from pathlib import Path

os.environ.setdefault("CUDA_VISIBLE_DEVICES", ""); os.environ.setdefault("HF_HUB_OFFLINE", "1"); os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
import numpy as np, torch, transformers, sentence_transformers
from safetensors.torch import load_file, save_file

from sentence_transformers import CrossEncoder, SentenceTransformer
from transformers import AutoTokenizer

import tokens

transformers.logging.set_verbosity_error(); logging.disable(logging.WARNING); transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)
HERE = Path(__file__).parent.parent
LIBRARIES = f"transformers {transformers.__version__}, sentence-transformers {sentence_transformers.__version__}, torch {torch.__version__.split('+')[0]}"
CLOSE, MATTERS = 1e-5, 1e-3

FOX = "The quick brown fox jumps over the lazy dog."
CAPITAL = "The capital of China is Beijing."
GRAVITY = "Gravity is a force that attracts two bodies towards each other."
UNICODE = "Café naïve, Ünïcode — 東京 is ﬁne №5 🙂 Straße"
EQUAL = ["the cat and the dog sat in here", "the dog and the cat sat in here"]
LONG = GRAVITY + " It is gravity."
OVER = LONG + " " + " ".join(tokens.CORPUS[3:8])
PAIR = ("the cat and", FOX)
TEXTS = [FOX, "fox", "   ", UNICODE, *EQUAL, LONG, OVER]
PAIRS = [("What is the capital of China?", CAPITAL), ("What is the capital of China?", GRAVITY), ("Explain gravity", LONG), ("Explain gravity", OVER), (UNICODE, "   ")]


# ---------------------------------------------------------------- weights

def fill(model, seed, spreads=()):
    """Random weights, each part large enough to count. `spreads`: (part of the name, standard deviation) before the defaults."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            noise = torch.randn(p.shape, generator=generator)
            low = name.lower()
            spread = next((s for part, s in spreads if part in name), None)
            if "norm" in low or "_ln" in low or "ln_" in low:
                around = 0.0 if low.endswith("bias") or "Gemma" in type(model).__name__ else 1.0
                p.copy_(around + (noise * (spread or 0.2) * 64).round().clamp(-40, 40) / 64)
            else:
                p.copy_((noise * (spread or (0.2 if low.endswith("bias") else 0.25)) * 256).round().clamp(-255, 255) / 256)
    return model.float().eval()


def check_weights(weights):
    for name, w in weights.items():
        if w.is_floating_point(): assert torch.equal(w, w.half().float()) and torch.equal(w, w.bfloat16().float()), name


# ---------------------------------------------------------------- files

def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def save_weights(folder, weights, file="model.safetensors", dtype=torch.float32):
    weights = {k: v.detach().clone().contiguous() for k, v in weights.items()}
    check_weights(weights)
    weights = {k: v.to(dtype) if v.is_floating_point() else v for k, v in weights.items()}
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / file, metadata={"format": "pt"})


POOLINGS = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens", "max": "pooling_mode_max_tokens", "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
            "weightedmean": "pooling_mode_weightedmean_tokens", "lasttoken": "pooling_mode_lasttoken"}


def pooling_config(width, modes, include_prompt=True, old=False):
    """As published: one flag for each mode; the oldest files lack the last two modes and include_prompt."""
    flags = {flag: mode in modes for mode, flag in POOLINGS.items()}
    if old:
        flags = {k: v for k, v in flags.items() if k not in ("pooling_mode_weightedmean_tokens", "pooling_mode_lasttoken")}
        return {"word_embedding_dimension": width} | flags
    return {"word_embedding_dimension": width} | flags | {"include_prompt": include_prompt}


def st_files(folder, width, pooling=("mean",), include_prompt=True, old_pooling=False, dense=(), normalize=True, max_seq_length=48, lower=False, prompts=None, default_prompt=None, similarity="cosine"):
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")] + [(f"{2 + i}_Dense", "Dense") for i in range(len(dense))]
    if normalize: modules.append((f"{2 + len(dense)}_Normalize", "Normalize"))  # Its folder is absent, as in published models.
    write(folder / "modules.json", [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"} for i, (path, kind) in enumerate(modules)])
    write(folder / "1_Pooling/config.json", pooling_config(width, pooling, include_prompt, old_pooling))
    for i, (config, weights) in enumerate(dense):
        write(folder / f"{2 + i}_Dense/config.json", config); save_weights(folder, weights, f"{2 + i}_Dense/model.safetensors")
    if max_seq_length: write(folder / "sentence_bert_config.json", {"max_seq_length": max_seq_length, "do_lower_case": lower})
    settings = {"__version__": {"sentence_transformers": "3.0.0", "transformers": "4.41.0", "pytorch": "2.3.0+cu121"}}
    if prompts is not None: settings |= {"prompts": prompts, "default_prompt_name": default_prompt, "similarity_fn_name": similarity}
    write(folder / "config_sentence_transformers.json", settings)


def dense_module(n_in, n_out, bias, activation, seed):
    g = torch.Generator().manual_seed(seed)
    weights = {"linear.weight": (torch.randn(n_out, n_in, generator=g) * 64).round().clamp(-255, 255) / 256}
    if bias: weights["linear.bias"] = (torch.randn(n_out, generator=g) * 64).round().clamp(-255, 255) / 256
    return {"in_features": n_in, "out_features": n_out, "bias": bias, "activation_function": f"torch.nn.modules.{activation}"}, weights


# ---------------------------------------------------------------- golden values

def floats(t):
    """Shortest decimals that read back as the same f32."""
    if isinstance(t, torch.Tensor): t = t.detach().float().numpy()
    t = np.asarray(t, dtype=np.float32)
    if t.ndim: return [floats(x) for x in t]
    return float(str(t))


def write_golden(folder, golden):
    lines = []
    for key, value in golden.items():
        if isinstance(value, list): lines.append(f" {json.dumps(key)}: [\n  " + ",\n  ".join(json.dumps(v, ensure_ascii=False, separators=(",", ":")) for v in value) + "\n ]")
        else: lines.append(f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}")
    write(folder / "golden.json", "{\n" + ",\n".join(lines) + "\n}\n")


def same(a, b, what, close=CLOSE):
    worst = float(np.abs(np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)).max())
    assert worst <= close, (what, worst)


@torch.no_grad()
def hidden(model, tokenizer, max_length, cases, types=True, key="last_hidden_state"):
    """Rows of the last layer for three cases, each alone and then beside the others with padding on the right."""
    out = []
    for case in cases:
        e = tokenizer(*([case] if isinstance(case, str) else case), truncation=True, max_length=max_length, return_tensors="pt")
        e = {k: v for k, v in e.items() if k in ("input_ids", "attention_mask") or (types and k == "token_type_ids")}
        rows = model(**e)[key][0]
        item = {"text": case} if isinstance(case, str) else {"pair": list(case)}
        item["tokens"] = e["input_ids"][0].tolist()
        if "token_type_ids" in e and e["token_type_ids"].any(): item["types"] = e["token_type_ids"][0].tolist()
        out.append(item | {key: floats(rows)})
    longest = max(len(i["tokens"]) for i in out)
    pad = tokenizer.pad_token_id
    ids = torch.tensor([i["tokens"] + [pad] * (longest - len(i["tokens"])) for i in out])
    mask = torch.tensor([[1] * len(i["tokens"]) + [0] * (longest - len(i["tokens"])) for i in out])
    more = {"token_type_ids": torch.tensor([(i.get("types") or []) + [0] * (longest - len(i.get("types") or [])) for i in out])} if any("types" in i for i in out) else {}
    batch = model(input_ids=ids, attention_mask=mask, **more)[key]
    for item, rows in zip(out, batch): same(rows[:len(item["tokens"])], item[key], "hidden in a batch", 5e-5)
    return out


def embed(st, requests, sides=("right",)):
    """Each request alone; those with the same settings once more as one batch, padded on each of `sides`."""
    out, groups = [], {}
    for request in requests:
        request = {"text": request} if isinstance(request, str) else dict(request)
        settings = {k: request[k] for k in ("prompt_name", "prompt", "truncate_dim") if k in request}
        if "instruction" in request: settings["prompt"] = f"Instruct: {request['instruction']}\nQuery:"
        if "normalize" in request: settings["normalize_embeddings"] = request["normalize"]
        vector = st.encode(request["text"], **settings)
        assert np.isfinite(vector).all() and np.abs(vector).max() > 1e-3
        out.append(request | {"vector": floats(vector)})
        groups.setdefault(json.dumps(settings), []).append(out[-1])
    before = st.tokenizer.padding_side
    for side in sides:
        st.tokenizer.padding_side = side
        for settings, items in groups.items():
            batch = st.encode([i["text"] for i in items], batch_size=64, **json.loads(settings))
            for item, vector in zip(items, batch): same(vector, item["vector"], f"{item['text'][:20]} in a batch padded on the {side}")
    st.tokenizer.padding_side = before
    return out


def differ(rows, name):
    rows = np.array([np.asarray(r["vector"] if "vector" in r else r["logits"]) for r in rows if len(r.get("vector", r.get("logits"))) == len(rows[0].get("vector", rows[0].get("logits")))])
    gap = min(np.abs(rows[i] - rows[j]).max() for i in range(len(rows)) for j in range(i))
    assert gap > MATTERS, (name, "two texts give one result", gap)


@torch.no_grad()
def check_matters(model, run, ignore=(), build=None, settings=()):
    """Changing any tensor, or any of `settings` (key, other value), changes what `run` returns."""
    base = run(model)
    for name, p in model.named_parameters():
        if any(part in name for part in ignore): continue
        old = p.clone()
        p.mul_(-1); p.add_(0.1 * torch.arange(p.numel()).reshape(p.shape).remainder(7) - 0.3)
        change = float((run(model) - base).abs().max())
        p.copy_(old)
        assert change > MATTERS, (name, "does not matter", change)
    for key, value in settings:
        config = copy.deepcopy(model.config)
        at = config
        *path, last = key.split(".")
        for part in path: at = at[part] if isinstance(at, dict) else getattr(at, part)
        if isinstance(at, dict): at[last] = value
        else: setattr(at, last, value)
        other = type(model)._from_config(config).float().eval()
        other.load_state_dict(model.state_dict(), strict=False)
        change = float((run(other) - base).abs().max())
        assert change > 1e-4, (key, "does not matter", change)


def probe(tokenizer, max_length, types=True):
    """Runs a pair and a long text, for check_matters."""
    encoded = [tokenizer(*case, truncation=True, max_length=max_length, return_tensors="pt") for case in [(FOX, CAPITAL), (LONG,)]]
    def run(model):
        outs = []
        for e in encoded:
            e = {k: v for k, v in e.items() if k in ("input_ids", "attention_mask") or (types and k == "token_type_ids")}
            o = model(**e)
            outs.append((o.logits if "logits" in o else o.last_hidden_state).flatten())
        return torch.cat(outs)
    return run


def text_files(folder, tokenizer, settings):
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    write(folder / "tokenizer_config.json", settings)
    write(folder / "special_tokens_map.json", {k: v for k, v in settings.items() if k.endswith("_token")})


def library_folder(folder, config):
    """A copy of a folder with another config.json: for families whose published config.json the library cannot read itself."""
    copied = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, copied)
    shutil.copytree(folder, copied, dirs_exist_ok=True)
    write(copied / "config.json", json.loads((folder / "config.json").read_text()) if config is None else config)
    return copied


def checkpoint(name, config, model_class, tokenizer, tokenizer_config, seed, spreads=(), rename=None, extra=(), dtype=torch.float32, library=None, patch=None, absent=()):
    """Writes the folder and reads it back with the library, as a user's would be. `rename`: from the library's tensors to the published
    ones; `library`: the config in the library's own words where it cannot read the published one; `patch`: a last change to the model;
    `absent`: tensors the library has and the published checkpoint has not."""
    folder = HERE / name
    if folder.exists(): shutil.rmtree(folder)
    write(folder / "config.json", config | {"vocab_size": tokenizer.get_vocab_size(), ("dtype" if "dtype" in config else "torch_dtype"): str(dtype)[6:]})
    text_files(folder, tokenizer, tokenizer_config)
    size = {"vocab_size": tokenizer.get_vocab_size()}
    at = library_folder(folder, library | size) if library else folder
    model = fill(model_class.from_config(transformers.AutoConfig.from_pretrained(at)), seed, spreads)
    weights = dict(model.state_dict())
    # What save_pretrained leaves out: tied tensors and those that are no parameters.
    keep = {n for n, _ in model.named_parameters()}
    weights = {k: v for k, v in weights.items() if k in keep}
    weights = (rename(weights) if rename else weights) | dict(extra)
    save_weights(folder, weights, dtype=dtype)
    if library: at = library_folder(folder, library | size)
    loaded, report = model_class.from_pretrained(at, output_loading_info=True, dtype=torch.float32)
    assert set(report["missing_keys"]) <= set(absent) and not report["mismatched_keys"], report
    if patch: patch(model), patch(loaded)
    assert set(report["unexpected_keys"]) <= set(dict(extra)), report
    for (n, a), (_, b) in zip(model.named_parameters(), loaded.named_parameters()): assert torch.equal(a, b), n
    theirs = AutoTokenizer.from_pretrained(at)
    raw = type(tokenizer).from_file(str(folder / "tokenizer.json"))
    raw.no_truncation(); raw.no_padding()
    for text in TEXTS: assert theirs(text)["input_ids"] == raw.encode(text).ids, (text, theirs.tokenize(text), raw.encode(text).tokens)
    lengths = [len(raw.encode(t).ids) for t in EQUAL]
    assert lengths[0] == lengths[1] and 30 < len(raw.encode(LONG).ids) < 60 and len(raw.encode(OVER).ids) > 100, len(raw.encode(LONG).ids)
    return folder, loaded.eval(), theirs


def sentence_transformer(folder):
    """In float32 whatever the checkpoint's type: the newest library would otherwise keep F16 and BF16."""
    return SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})


def source(model, *more):
    return f"{LIBRARIES}: " + ", ".join([type(model).__name__, *more])


def score(folder, model, tokenizer, max_length, cases, activation, predict=False, types=True):
    """Logits of each case alone, checked in one padded batch; `activation` makes the probabilities."""
    out = []
    with torch.no_grad():
        for case in cases:
            e = tokenizer(*([case] if isinstance(case, str) else case), truncation=True, max_length=max_length, return_tensors="pt")
            logits = model(**e).logits[0]
            out.append(({"text": case} if isinstance(case, str) else {"pair": list(case)}) | {"tokens": e["input_ids"][0].tolist(), "logits": floats(logits), "probabilities": floats(activation(logits))})
            if "token_type_ids" in e and e["token_type_ids"].any(): out[-1]["types"] = e["token_type_ids"][0].tolist()
        if isinstance(cases[0], str): e = tokenizer(list(cases), truncation=True, max_length=max_length, padding=True, return_tensors="pt")
        else: e = tokenizer([a for a, _ in cases], [b for _, b in cases], truncation=True, max_length=max_length, padding=True, return_tensors="pt")
        for item, logits in zip(out, model(**e).logits): same(logits, item["logits"], "logits in a batch")
    if predict:
        encoder = CrossEncoder(str(folder), device="cpu", max_length=max_length, model_kwargs={"dtype": torch.float32})
        for item, pair in zip(out, cases):
            item["predict"] = floats(encoder.predict([pair])[0])
            raw = encoder.predict([pair], activation_fn=torch.nn.Identity())[0]
            same(raw, item["logits"], "CrossEncoder's logits")
    differ(out, folder.name)
    return out


def softmax(logits): return torch.softmax(logits, -1)


def finish(folder, golden):
    write_golden(folder, golden)
    for file in folder.rglob("*"):
        if file.is_file(): file.chmod(0o644)
    size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    print(f"{folder.name}: {size / 1000:.0f} KB", flush=True)


CASES = {}
def case(function):
    CASES[function.__name__.replace("_", "-")] = function
    return function

