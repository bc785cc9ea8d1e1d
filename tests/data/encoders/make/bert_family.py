"""BERT and the models laid out like it: absolute or bucketed positions, LayerNorm behind each block."""
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer, SparseEncoder
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer

import tokens
from reference import *

BERT = {"architectures": ["BertModel"], "attention_probs_dropout_prob": 0.1, "classifier_dropout": None, "gradient_checkpointing": False, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 32,
        "initializer_range": 0.02, "intermediate_size": 40, "layer_norm_eps": 1e-12, "max_position_embeddings": 64, "model_type": "bert", "num_attention_heads": 4, "num_hidden_layers": 2, "pad_token_id": 0,
        "position_embedding_type": "absolute", "torch_dtype": "float32", "transformers_version": "4.41.0", "type_vocab_size": 2, "use_cache": True, "vocab_size": 0}
BERT_TOKENS = {"clean_up_tokenization_spaces": True, "cls_token": "[CLS]", "do_lower_case": True, "mask_token": "[MASK]", "model_max_length": 64, "pad_token": "[PAD]", "sep_token": "[SEP]", "strip_accents": None,
               "tokenize_chinese_chars": True, "tokenizer_class": "BertTokenizer", "unk_token": "[UNK]"}
LABELS = {"id2label": {"0": "bad", "1": "so-so", "2": "good"}, "label2id": {"bad": 0, "good": 2, "so-so": 1}}


def text_files(folder, tokenizer, settings):
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    write(folder / "tokenizer_config.json", settings)
    write(folder / "special_tokens_map.json", {k: v for k, v in settings.items() if k.endswith("_token")})


def checkpoint(name, config, model_class, tokenizer, tokenizer_config, seed, spreads=(), rename=None, extra=(), dtype=torch.float32):
    """Writes the folder and reads it back with the library, as a user's would be. `rename`: from the library's tensor names to the published."""
    folder = HERE / name
    if folder.exists(): shutil.rmtree(folder)
    write(folder / "config.json", config | {"vocab_size": tokenizer.get_vocab_size(), "torch_dtype": str(dtype)[6:]})
    text_files(folder, tokenizer, tokenizer_config)
    model = fill(model_class.from_config(transformers.AutoConfig.from_pretrained(folder)), seed, spreads)
    weights = dict(model.state_dict())
    # What save_pretrained leaves out: tied tensors and those that are no parameters.
    keep = {n for n, _ in model.named_parameters()}
    weights = {(rename(k) if rename else k): v for k, v in weights.items() if k in keep} | dict(extra)
    save_weights(folder, weights, dtype=dtype)
    loaded, report = model_class.from_pretrained(folder, output_loading_info=True, dtype=torch.float32)
    assert not report["missing_keys"] and not report["mismatched_keys"], report
    assert set(report["unexpected_keys"]) <= set(dict(extra)), report
    for (n, a), (_, b) in zip(model.named_parameters(), loaded.named_parameters()): assert torch.equal(a, b), n
    theirs = AutoTokenizer.from_pretrained(folder)
    raw = type(tokenizer).from_file(str(folder / "tokenizer.json"))
    raw.no_truncation(); raw.no_padding()
    for text in TEXTS: assert theirs(text)["input_ids"] == raw.encode(text).ids, (text, theirs.tokenize(text), raw.encode(text).tokens)
    lengths = [len(raw.encode(t).ids) for t in EQUAL]
    assert lengths[0] == lengths[1] and 30 < len(raw.encode(LONG).ids) < 60 and len(raw.encode(OVER).ids) > 100, len(raw.encode(LONG).ids)
    return folder, loaded.eval(), theirs


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


@case
def bert_mean():
    """As all-MiniLM-L6-v2: an old 1_Pooling file, truncation and fixed padding left in tokenizer.json, a position_ids tensor. With prompts."""
    tokenizer = tokens.wordpiece()
    tokens.truncated_and_padded(tokenizer)
    folder, model, hf = checkpoint("bert-mean", BERT, AutoModel, tokenizer, BERT_TOKENS, 1, extra={"embeddings.position_ids": torch.arange(64).unsqueeze(0)})
    st_files(folder, 32, old_pooling=True, max_seq_length=48, prompts={"query": "query: ", "passage": "passage: "}, default_prompt="query")
    check_matters(model, probe(hf, 64), ignore=("pooler", "key.bias"), settings=[("hidden_act", "gelu_new")])
    st = SentenceTransformer(str(folder), device="cpu")
    embeddings = embed(st, TEXTS + [{"text": FOX, "prompt_name": "passage"}, {"text": OVER, "prompt_name": "passage"}, {"text": FOX, "prompt": ""}, {"text": FOX, "truncate_dim": 8}, {"text": FOX, "truncate_dim": 8, "normalize": True}])
    differ(embeddings[:6], "bert-mean")
    finish(folder, {"source": source(model, "SentenceTransformer"), "hidden": hidden(model, hf, 64, [FOX, PAIR, OVER]), "embeddings": embeddings})


@case
def bert_cls_dense():
    """The first token through a Dense layer with tanh; a cased tokenizer that sentence_bert_config.json says to lower-case."""
    settings = BERT_TOKENS | {"do_lower_case": False}
    folder, model, hf = checkpoint("bert-cls-dense", BERT, AutoModel, tokens.wordpiece(lowercase=False), settings, 2)
    st_files(folder, 32, ("cls",), lower=True, max_seq_length=40, dense=[dense_module(32, 20, True, "activation.Tanh", 2)])
    check_matters(model, probe(hf, 64), ignore=("pooler", "key.bias"))
    st = SentenceTransformer(str(folder), device="cpu")
    assert list(st.tokenize(["FOX"])["input_ids"][0]) == list(st.tokenize(["fox"])["input_ids"][0])
    embeddings = embed(st, TEXTS + [FOX.upper(), {"text": FOX, "truncate_dim": 7, "normalize": True}])
    same(embeddings[0]["vector"], embeddings[len(TEXTS)]["vector"], "lower-cased")
    finish(folder, {"source": source(model, "SentenceTransformer"), "embeddings": embeddings, "hidden": hidden(model, hf, 64, [FOX, PAIR, OVER])})


@case
def bert_pooling_all():
    """Three poolings side by side in 1_Pooling, without Normalize; others, and prompts left out of the pooling, in poolings/."""
    folder, model, hf = checkpoint("bert-pooling-all", BERT, AutoModel, tokens.wordpiece(), BERT_TOKENS, 3)
    st_files(folder, 32, ("cls", "mean", "max"), normalize=False, max_seq_length=48, prompts={"query": "query: the "})
    modes = {mode: ((mode,), True) for mode in POOLINGS} | {f"{mode}-without-prompt": ((mode,), False) for mode in POOLINGS}
    requests = [FOX, UNICODE, "   ", LONG]
    st = SentenceTransformer(str(folder), device="cpu")
    embeddings = embed(st, TEXTS + [{"text": FOX, "prompt_name": "query"}, {"text": FOX, "normalize": True}, {"text": FOX, "truncate_dim": 40}])
    for name, (mode, include_prompt) in modes.items():
        write(folder / f"poolings/{name}/config.json", pooling_config(32, mode, include_prompt))
        with tempfile.TemporaryDirectory() as copied:
            shutil.copytree(folder, copied, dirs_exist_ok=True)
            shutil.copy(folder / f"poolings/{name}/config.json", Path(copied) / "1_Pooling/config.json")
            st = SentenceTransformer(copied, device="cpu")
            asked = [{"text": t} for t in requests] if include_prompt else []
            asked += [{"text": t, "prompt_name": "query"} for t in requests[:2] + ([OVER] if not include_prompt else [])]
            embeddings += [{"text": r["text"], "pooling": name} | {k: v for k, v in r.items() if k not in ("text",)} for r in embed(st, asked)]
    finish(folder, {"source": source(model, "SentenceTransformer"), "embeddings": embeddings})


@case
def bert_crossencoder():
    """As ms-marco-MiniLM: one label, and a config.json that tells CrossEncoder to give the bare logit."""
    config = BERT | {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity", "version": "4.0.1"}}
    folder, model, hf = checkpoint("bert-crossencoder", config, AutoModelForSequenceClassification, tokens.wordpiece(), BERT_TOKENS, 4, spreads=[("classifier.weight", 0.5)])
    check_matters(model, probe(hf, 64), ignore=("key.bias",))
    finish(folder, {"source": source(model, "CrossEncoder"), "scores": score(folder, model, hf, 64, PAIRS, torch.sigmoid, predict=True)})


@case
def bert_classifier():
    folder, model, hf = checkpoint("bert-classifier", BERT | {"architectures": ["BertForSequenceClassification"]} | LABELS, AutoModelForSequenceClassification, tokens.wordpiece(), BERT_TOKENS, 5, dtype=torch.float16, spreads=[("classifier.weight", 0.5)])
    check_matters(model, probe(hf, 64), ignore=("key.bias",))
    finish(folder, {"source": source(model), "scores": score(folder, model, hf, 64, TEXTS, softmax)})


@case
def bert_multilabel():
    config = BERT | {"architectures": ["BertForSequenceClassification"], "problem_type": "multi_label_classification", "id2label": {"0": "toxic", "1": "spam", "2": "rude", "3": "off topic"}, "label2id": {"toxic": 0, "spam": 1, "rude": 2, "off topic": 3}}
    folder, model, hf = checkpoint("bert-multilabel", config, AutoModelForSequenceClassification, tokens.wordpiece(), BERT_TOKENS, 6, dtype=torch.float16, spreads=[("classifier.weight", 0.5)])
    finish(folder, {"source": source(model), "scores": score(folder, model, hf, 64, TEXTS, torch.sigmoid)})


@case
def bert_splade():
    """As naver/splade and prithivida's: BertForMaskedLM, the decoder tied to the word embeddings; log(1 + relu) and the largest over tokens."""
    folder, model, hf = checkpoint("bert-splade", BERT | {"architectures": ["BertForMaskedLM"], "tie_word_embeddings": True}, AutoModelForMaskedLM, tokens.wordpiece(), BERT_TOKENS, 7, spreads=[("cls.predictions.bias", 0.4), ("word_embeddings", 0.15)])
    write(folder / "modules.json", [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.sparse_encoder.models.MLMTransformer"}, {"idx": 1, "name": "1", "path": "1_SpladePooling", "type": "sentence_transformers.sparse_encoder.models.SpladePooling"}])
    write(folder / "1_SpladePooling/config.json", {"pooling_strategy": "max", "activation_function": "relu", "word_embedding_dimension": hf.vocab_size})
    write(folder / "sentence_bert_config.json", {"max_seq_length": 48, "do_lower_case": False})
    write(folder / "config_sentence_transformers.json", {"model_type": "SparseEncoder", "__version__": {"sentence_transformers": "5.0.0", "transformers": "4.50.0", "pytorch": "2.6.0"}, "prompts": {"query": "", "document": ""}, "default_prompt_name": None, "similarity_fn_name": "dot"})
    check_matters(model, probe(hf, 64), ignore=("key.bias",))
    encoder = SparseEncoder(str(folder), device="cpu")
    rows = [encoder.encode(t, convert_to_sparse_tensor=False) for t in TEXTS]
    for row, other in zip(rows, encoder.encode(TEXTS, convert_to_sparse_tensor=False)): same(row, other, "sparse in a batch")
    finish(folder, {"source": source(model, "SparseEncoder"), "sparse": [{"text": t, "weights": {str(i): floats(w) for i, w in enumerate(row) if w > 0}} for t, row in zip(TEXTS, rows)],
                    "hidden": hidden(model, hf, 64, [FOX], key="logits")})
