"""BERT and the models laid out like it: absolute or bucketed positions, LayerNorm behind each block."""
from collections import OrderedDict

import torch
from sentence_transformers import SparseEncoder
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification

import tokens
from reference import *

BERT = {"architectures": ["BertModel"], "attention_probs_dropout_prob": 0.1, "classifier_dropout": None, "gradient_checkpointing": False, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 32,
        "initializer_range": 0.02, "intermediate_size": 40, "layer_norm_eps": 1e-12, "max_position_embeddings": 64, "model_type": "bert", "num_attention_heads": 4, "num_hidden_layers": 2, "pad_token_id": 0,
        "position_embedding_type": "absolute", "torch_dtype": "float32", "transformers_version": "4.41.0", "type_vocab_size": 2, "use_cache": True, "vocab_size": 0}
BERT_TOKENS = {"clean_up_tokenization_spaces": True, "cls_token": "[CLS]", "do_lower_case": True, "mask_token": "[MASK]", "model_max_length": 64, "pad_token": "[PAD]", "sep_token": "[SEP]", "strip_accents": None,
               "tokenize_chinese_chars": True, "tokenizer_class": "BertTokenizer", "unk_token": "[UNK]"}
LABELS = {"id2label": {"0": "bad", "1": "so-so", "2": "good"}, "label2id": {"bad": 0, "good": 2, "so-so": 1}}


@case
def bert_mean():
    """As all-MiniLM-L6-v2: an old 1_Pooling file, truncation and fixed padding left in tokenizer.json, a position_ids tensor. With prompts."""
    tokenizer = tokens.wordpiece()
    tokens.truncated_and_padded(tokenizer)
    folder, model, hf = checkpoint("bert-mean", BERT, AutoModel, tokenizer, BERT_TOKENS, 1, extra={"embeddings.position_ids": torch.arange(64).unsqueeze(0)})
    st_files(folder, 32, old_pooling=True, max_seq_length=48, prompts={"query": "query: ", "passage": "passage: "}, default_prompt="query")
    check_matters(model, probe(hf, 64), ignore=("pooler", "key.bias"), settings=[("hidden_act", "gelu_new")])
    st = sentence_transformer(folder)
    embeddings = embed(st, TEXTS + [{"text": FOX, "prompt_name": "passage"}, {"text": OVER, "prompt_name": "passage"}, {"text": FOX, "prompt": ""}, {"text": FOX, "truncate_dim": 8}, {"text": FOX, "truncate_dim": 8, "normalize": True}])
    differ(embeddings[:6], "bert-mean")
    finish(folder, {"source": source(model, "SentenceTransformer"), "hidden": hidden(model, hf, 64, [FOX, PAIR, OVER]), "embeddings": embeddings})


@case
def bert_cls_dense():
    """The first token through a Dense layer with tanh; a cased tokenizer that sentence_bert_config.json says to lower-case."""
    settings = BERT_TOKENS | {"do_lower_case": False}
    folder, model, hf = checkpoint("bert-cls-dense", BERT, AutoModel, tokens.wordpiece(lowercase=False), settings, 2, dtype=torch.float16)
    st_files(folder, 32, ("cls",), lower=True, max_seq_length=40, dense=[dense_module(32, 20, True, "activation.Tanh", 2)])
    check_matters(model, probe(hf, 64), ignore=("pooler", "key.bias"))
    st = sentence_transformer(folder)
    assert list(st.tokenize(["FOX"])["input_ids"][0]) == list(st.tokenize(["fox"])["input_ids"][0])
    embeddings = embed(st, TEXTS + [FOX.upper(), {"text": FOX, "truncate_dim": 7, "normalize": True}])
    same(embeddings[0]["vector"], embeddings[len(TEXTS)]["vector"], "lower-cased")
    finish(folder, {"source": source(model, "SentenceTransformer"), "hidden": hidden(model, hf, 64, [FOX, PAIR, LONG]), "embeddings": embeddings})


@case
def bert_pooling_all():
    """Three poolings side by side in 1_Pooling, without Normalize; others, and prompts left out of the pooling, in poolings/."""
    folder, model, hf = checkpoint("bert-pooling-all", BERT, AutoModel, tokens.wordpiece(), BERT_TOKENS, 3, dtype=torch.float16)
    st_files(folder, 32, ("cls", "mean", "max"), normalize=False, max_seq_length=48, prompts={"query": "query: the "})
    modes = {mode: ((mode,), True) for mode in POOLINGS} | {f"{mode}-without-prompt": ((mode,), False) for mode in POOLINGS}
    requests = [FOX, UNICODE, "   ", LONG]
    st = sentence_transformer(folder)
    embeddings = embed(st, TEXTS + [{"text": FOX, "prompt_name": "query"}, {"text": FOX, "normalize": True}, {"text": FOX, "truncate_dim": 40}])
    for name, (mode, include_prompt) in modes.items():
        write(folder / f"poolings/{name}/config.json", pooling_config(32, mode, include_prompt))
        with tempfile.TemporaryDirectory() as copied:
            shutil.copytree(folder, copied, dirs_exist_ok=True)
            shutil.copy(folder / f"poolings/{name}/config.json", Path(copied) / "1_Pooling/config.json")
            st = sentence_transformer(copied)
            asked = [{"text": t} for t in requests] if include_prompt else []
            asked += [{"text": t, "prompt_name": "query"} for t in requests[:2] + ([OVER] if not include_prompt else [])]
            embeddings += [{"text": r["text"], "pooling": name} | {k: v for k, v in r.items() if k not in ("text",)} for r in embed(st, asked)]
    finish(folder, {"source": source(model, "SentenceTransformer"), "embeddings": embeddings})


@case
def bert_crossencoder():
    """As ms-marco-MiniLM: one label, and a config.json that tells CrossEncoder to give the bare logit."""
    config = BERT | {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity", "version": "4.0.1"}}
    folder, model, hf = checkpoint("bert-crossencoder", config, AutoModelForSequenceClassification, tokens.wordpiece(), BERT_TOKENS, 4, dtype=torch.float16, spreads=[("classifier.weight", 0.5)])
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
                    "hidden": hidden(model, hf, 64, ["fox"], key="logits")})


# ---------------------------------------------------------------- roberta, distilbert, mpnet, deberta

ROBERTA = {"architectures": ["RobertaModel"], "attention_probs_dropout_prob": 0.1, "bos_token_id": 0, "classifier_dropout": None, "eos_token_id": 2, "gradient_checkpointing": False, "hidden_act": "gelu",
           "hidden_dropout_prob": 0.1, "hidden_size": 32, "initializer_range": 0.02, "intermediate_size": 40, "layer_norm_eps": 1e-5, "max_position_embeddings": 66, "model_type": "roberta", "num_attention_heads": 4,
           "num_hidden_layers": 2, "pad_token_id": 1, "position_embedding_type": "absolute", "torch_dtype": "float32", "transformers_version": "4.41.0", "type_vocab_size": 1, "use_cache": True, "vocab_size": 0}
ROBERTA_SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
ROBERTA_TOKENS = {"add_prefix_space": False, "bos_token": "<s>", "clean_up_tokenization_spaces": True, "cls_token": "<s>", "eos_token": "</s>", "errors": "replace", "mask_token": "<mask>", "model_max_length": 64,
                  "pad_token": "<pad>", "sep_token": "</s>", "tokenizer_class": "RobertaTokenizer", "trim_offsets": True, "unk_token": "<unk>"}


def roberta_tokenizer():
    tokenizer = tokens.byte_bpe(330, first=ROBERTA_SPECIALS)
    tokenizer.post_processor = tokens.processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False)
    return tokenizer


@case
def roberta():
    """Positions from pad + 1; no token types to choose from; also padded on the left."""
    folder, model, hf = checkpoint("roberta", ROBERTA, AutoModel, roberta_tokenizer(), ROBERTA_TOKENS, 11, dtype=torch.float16)
    st_files(folder, 32, max_seq_length=50)
    check_matters(model, probe(hf, 64), ignore=("pooler", "key.bias"))
    st = sentence_transformer(folder)
    embeddings = embed(st, TEXTS, sides=("right", "left"))
    differ(embeddings[:7], "roberta")
    finish(folder, {"source": source(model, "SentenceTransformer"), "hidden": hidden(model, hf, 64, [FOX, PAIR, OVER]), "embeddings": embeddings})


@case
def roberta_classifier():
    """The head is dense, tanh, out_proj on the first token; there is no pooler."""
    folder, model, hf = checkpoint("roberta-classifier", ROBERTA | {"architectures": ["RobertaForSequenceClassification"]} | LABELS, AutoModelForSequenceClassification, roberta_tokenizer(), ROBERTA_TOKENS, 12, [("out_proj.weight", 0.5)], dtype=torch.float16)
    check_matters(model, probe(hf, 64), ignore=("key.bias",))
    finish(folder, {"source": source(model), "scores": score(folder, model, hf, 64, TEXTS, softmax)})


XLM_R_TEMPLATE = ("<s> $A </s>", "<s> $A </s> </s> $B </s>")


@case
def xlm_roberta_reranker():
    """As bge-reranker-v2-m3: unigram pieces behind a character map, one label, sigmoid."""
    config = ROBERTA | {"architectures": ["XLMRobertaForSequenceClassification"], "model_type": "xlm-roberta", "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    settings = {k: v for k, v in ROBERTA_TOKENS.items() if k not in ("add_prefix_space", "errors", "trim_offsets")} | {"tokenizer_class": "XLMRobertaTokenizer"}
    tokenizer = tokens.unigram(["<s>", "<pad>", "</s>", "<unk>"], ["<mask>"], "<unk>", *XLM_R_TEMPLATE)
    folder, model, hf = checkpoint("xlm-roberta-reranker", config, AutoModelForSequenceClassification, tokenizer, settings, 13, [("out_proj.weight", 0.5)])
    check_matters(model, probe(hf, 64), ignore=("key.bias",))
    finish(folder, {"source": source(model, "CrossEncoder"), "scores": score(folder, model, hf, 64, PAIRS, torch.sigmoid, predict=True)})


@case
def bge_m3():
    """As BAAI/bge-m3: XLM-R's first token, normalized, and a layer that makes token weights (FlagEmbedding's `token_weights`, written from
    its formula: relu of the layer, of a token that comes again the largest, none of cls, eos, pad and unk); all weights as torch.save writes them."""
    config = ROBERTA | {"architectures": ["XLMRobertaModel"], "model_type": "xlm-roberta"}
    settings = {k: v for k, v in ROBERTA_TOKENS.items() if k not in ("add_prefix_space", "errors", "trim_offsets")} | {"tokenizer_class": "XLMRobertaTokenizer"}
    tokenizer = tokens.unigram(["<s>", "<pad>", "</s>", "<unk>"], ["<mask>"], "<unk>", *XLM_R_TEMPLATE)
    folder, model, hf = checkpoint("bge-m3", config, AutoModel, tokenizer, settings, 31)
    st_files(folder, 32, ("cls",), max_seq_length=64)
    check_matters(model, probe(hf, 64), ignore=("key.bias", "pooler"))
    st = sentence_transformer(folder)
    embeddings = embed(st, TEXTS)
    differ(embeddings[:7], "bge-m3")
    g = torch.Generator().manual_seed(32)
    layer = {"weight": (torch.randn(1, 32, generator=g) * 64).round().clamp(-255, 255) / 256, "bias": torch.tensor([0.125])}
    torch.save(layer, folder / "sparse_linear.pt")
    weights = load_file(folder / "model.safetensors")
    torch.save(OrderedDict(weights), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    unused, sparse = {hf.cls_token_id, hf.eos_token_id, hf.pad_token_id, hf.unk_token_id}, []
    for text in TEXTS + [FOX + " " + FOX]:
        encoded = hf(text, truncation=True, max_length=64, return_tensors="pt")
        with torch.no_grad(): rows = torch.relu(torch.nn.functional.linear(model(**encoded).last_hidden_state[0], layer["weight"], layer["bias"]))[:, 0]
        largest = {}
        for token, weight in zip(encoded["input_ids"][0].tolist(), rows.tolist()):
            if token not in unused and weight > largest.get(token, 0): largest[token] = weight
        sparse.append({"text": text, "weights": {str(token): floats(torch.tensor(largest[token])) for token in sorted(largest)}})
    assert sum(len(item["weights"]) for item in sparse) > 40
    finish(folder, {"source": source(model, "SentenceTransformer", "token weights by FlagEmbedding's formula"), "hidden": hidden(model, hf, 64, [FOX, PAIR, LONG]), "embeddings": embeddings, "sparse": sparse})


DISTILBERT = {"activation": "gelu", "architectures": ["DistilBertModel"], "attention_dropout": 0.1, "dim": 32, "dropout": 0.1, "hidden_dim": 40, "initializer_range": 0.02, "max_position_embeddings": 64, "model_type": "distilbert",
              "n_heads": 4, "n_layers": 2, "pad_token_id": 0, "qa_dropout": 0.1, "seq_classif_dropout": 0.2, "sinusoidal_pos_embds": False, "tie_weights_": True, "torch_dtype": "float32", "transformers_version": "4.41.0", "vocab_size": 0}
DISTILBERT_TOKENS = BERT_TOKENS | {"tokenizer_class": "DistilBertTokenizer"}


@case
def distilbert():
    """The whole text as the model takes it: neither sentence_bert_config.json nor a max_seq_length, so the model's 64 positions."""
    folder, model, hf = checkpoint("distilbert", DISTILBERT, AutoModel, tokens.wordpiece(), DISTILBERT_TOKENS, 14, dtype=torch.float16)
    st_files(folder, 32, max_seq_length=None, normalize=False)
    check_matters(model, probe(hf, 64, types=False), ignore=("k_lin.bias",))
    st = sentence_transformer(folder)
    finish(folder, {"source": source(model, "SentenceTransformer"), "hidden": hidden(model, hf, 64, [FOX, PAIR, OVER], types=False), "embeddings": embed(st, TEXTS)})


@case
def distilbert_classifier():
    """As distilbert-base-uncased-finetuned-sst-2: pre_classifier, relu, classifier on the first token."""
    config = DISTILBERT | {"architectures": ["DistilBertForSequenceClassification"], "id2label": {"0": "NEGATIVE", "1": "POSITIVE"}, "label2id": {"NEGATIVE": 0, "POSITIVE": 1}, "finetuning_task": "sst-2"}
    folder, model, hf = checkpoint("distilbert-classifier", config, AutoModelForSequenceClassification, tokens.wordpiece(), DISTILBERT_TOKENS, 15, [("classifier.weight", 0.4)], dtype=torch.float16)
    check_matters(model, probe(hf, 64, types=False), ignore=("k_lin.bias",))
    finish(folder, {"source": source(model), "scores": score(folder, model, hf, 64, TEXTS, softmax, types=False)})


@case
def mpnet():
    """As all-mpnet-base-v2: positions from pad + 1 and, besides, one table of relative positions shared by all layers."""
    config = {"architectures": ["MPNetModel"], "attention_probs_dropout_prob": 0.1, "bos_token_id": 0, "eos_token_id": 2, "gradient_checkpointing": False, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 32, "initializer_range": 0.02,
              "intermediate_size": 40, "layer_norm_eps": 1e-5, "max_position_embeddings": 66, "model_type": "mpnet", "num_attention_heads": 4, "num_hidden_layers": 2, "pad_token_id": 1, "relative_attention_num_buckets": 32,
              "torch_dtype": "float32", "transformers_version": "4.41.0", "vocab_size": 0}
    settings = {"bos_token": "<s>", "clean_up_tokenization_spaces": True, "cls_token": "<s>", "do_lower_case": True, "eos_token": "</s>", "mask_token": "<mask>", "model_max_length": 64, "pad_token": "<pad>", "sep_token": "</s>", "strip_accents": None,
                "tokenize_chinese_chars": True, "tokenizer_class": "MPNetTokenizer", "unk_token": "[UNK]"}
    tokenizer = tokens.wordpiece(specials=("<s>", "<pad>", "</s>", "[UNK]", "<mask>"), cls="<s>", sep="</s>", pair_separators=2)
    folder, model, hf = checkpoint("mpnet", config, AutoModel, tokenizer, settings, 16, [("relative_attention_bias", 0.6)], dtype=torch.float16)
    st_files(folder, 32, max_seq_length=48)
    check_matters(model, probe(hf, 64), ignore=("pooler", "attn.k.bias"))
    st = sentence_transformer(folder)
    embeddings = embed(st, TEXTS)
    differ(embeddings[:7], "mpnet")
    finish(folder, {"source": source(model, "SentenceTransformer"), "hidden": hidden(model, hf, 64, [FOX, PAIR, OVER]), "embeddings": embeddings})


DEBERTA = {"architectures": ["DebertaV2Model"], "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 32, "initializer_range": 0.02, "intermediate_size": 40, "layer_norm_eps": 1e-7,
           "max_position_embeddings": 64, "max_relative_positions": -1, "model_type": "deberta-v2", "norm_rel_ebd": "layer_norm", "num_attention_heads": 4, "num_hidden_layers": 2, "pad_token_id": 0, "pooler_dropout": 0,
           "pooler_hidden_act": "gelu", "pooler_hidden_size": 32, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False, "position_buckets": 12, "relative_attention": True, "share_att_key": True,
           "torch_dtype": "float32", "transformers_version": "4.41.0", "type_vocab_size": 0, "vocab_size": 0}
DEBERTA_TOKENS = {"bos_token": "[CLS]", "clean_up_tokenization_spaces": True, "cls_token": "[CLS]", "do_lower_case": False, "eos_token": "[SEP]", "mask_token": "[MASK]", "model_max_length": 64, "pad_token": "[PAD]", "sep_token": "[SEP]",
                  "sp_model_kwargs": {}, "split_by_punct": False, "tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]", "vocab_type": "spm"}


def deberta_tokenizer():
    return tokens.unigram(["[PAD]", "[CLS]", "[SEP]", "[UNK]"], ["[MASK]"], "[UNK]", "[CLS]:0 $A:0 [SEP]:0", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", newer=True)


@case
def deberta_v2():
    """As deberta-v3: relative positions in 12 log buckets each way through the shared query and key projections, both terms."""
    folder, model, hf = checkpoint("deberta-v2", DEBERTA, AutoModel, deberta_tokenizer(), DEBERTA_TOKENS, 17, dtype=torch.float16)
    st_files(folder, 32, max_seq_length=64)
    check_matters(model, probe(hf, 64), settings=[("pos_att_type", ["c2p"]), ("pos_att_type", ["p2c"]), ("max_relative_positions", 128), ("norm_rel_ebd", "none")])
    st = sentence_transformer(folder)
    embeddings = embed(st, TEXTS)
    differ(embeddings[:7], "deberta-v2")
    finish(folder, {"source": source(model, "SentenceTransformer"), "hidden": hidden(model, hf, 64, [FOX, PAIR, LONG]), "embeddings": embeddings})


@case
def deberta_v2_classifier():
    """As deberta-v2-xlarge: a convolution beside the first layer; pos_att_type as one string; token types; gelu between pooler and classifier."""
    config = DEBERTA | LABELS | {"architectures": ["DebertaV2ForSequenceClassification"], "attention_head_size": 8, "conv_act": "gelu", "conv_kernel_size": 3, "pos_att_type": "p2c|c2p", "type_vocab_size": 2}
    folder, model, hf = checkpoint("deberta-v2-classifier", config, AutoModelForSequenceClassification, deberta_tokenizer(), DEBERTA_TOKENS | {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}, 18, [("classifier.weight", 0.5)], dtype=torch.float16)
    check_matters(model, probe(hf, 64), settings=[("conv_act", "tanh")])
    finish(folder, {"source": source(model), "scores": score(folder, model, hf, 64, TEXTS, softmax) + score(folder, model, hf, 64, PAIRS[:2], softmax)})
