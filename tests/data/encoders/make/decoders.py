"""Decoders that embed or judge: Qwen3-Embedding and Qwen3-Reranker, EmbeddingGemma, and plain ones by their pooling."""
import torch
from transformers import AutoModel, AutoModelForCausalLM

import tokens
from reference import *

QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 0, "eos_token_id": 0, "head_dim": 16, "hidden_act": "silu", "hidden_size": 32, "initializer_range": 0.02,
         "intermediate_size": 40, "max_position_embeddings": 64, "max_window_layers": 2, "model_type": "qwen3", "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "rope_scaling": None,
         "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "transformers_version": "4.51.2", "use_cache": True, "use_sliding_window": False, "vocab_size": 0}
QWEN_SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TASK = "Given a web search query, retrieve relevant passages that answer the query"
OTHER_TASK = "Given a claim, find documents that refute it"


def qwen_tokenizer(size, append_end, words=(), corpus=(), plain=()):
    tokenizer = tokens.byte_bpe(size, last=QWEN_SPECIALS, pieces=tokens.qwen_pieces(), words=words, corpus=corpus)
    tokenizer.add_tokens([tokens.AddedToken(t, special=False, normalized=False) for t in plain])
    tokenizer.normalizer = tokens.normalizers.NFC()
    level = tokens.processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    if append_end:
        end = tokens.processors.TemplateProcessing(single="$A:0 <|endoftext|>:0", pair="$A:0 <|endoftext|>:0 $B:1 <|endoftext|>:1", special_tokens=[("<|endoftext|>", tokenizer.token_to_id("<|endoftext|>"))])
        tokenizer.post_processor = tokens.processors.Sequence([level, end])
    else: tokenizer.post_processor = level
    return tokenizer


def qwen_tokens(tokenizer, max_length):
    added = {str(i): {"content": t.content, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": t.special} for i, t in sorted(tokenizer.get_added_tokens_decoder().items())}
    return {"add_bos_token": False, "add_prefix_space": False, "added_tokens_decoder": added, "additional_special_tokens": QWEN_SPECIALS[1:], "bos_token": None, "clean_up_tokenization_spaces": False, "eos_token": "<|im_end|>",
            "errors": "replace", "model_max_length": max_length, "pad_token": "<|endoftext|>", "split_special_tokens": False, "tokenizer_class": "Qwen2Tokenizer", "unk_token": None}


def without_prefix(weights): return {k.removeprefix("model."): v for k, v in weights.items()}
def with_prefix(weights): return {k if k.startswith("model.") else f"model.{k}": v for k, v in weights.items()}


def with_ends(tokenizer, config):
    """The settings with the tokenizer's own number for <|endoftext|>."""
    end = tokenizer.token_to_id("<|endoftext|>")
    return config | {"bos_token_id": end, "eos_token_id": end}


@case
def qwen3_embedding():
    """Last token after the final norm; <|endoftext|> appended by tokenizer.json's template; no `model.` before the names; no sentence_bert_config.json."""
    tokenizer = qwen_tokenizer(340, True)
    folder, model, hf = checkpoint("qwen3-embedding", with_ends(tokenizer, QWEN3) | {"max_position_embeddings": 96}, AutoModel, tokenizer, qwen_tokens(tokenizer, 96), 31, dtype=torch.bfloat16, rename=without_prefix)
    st_files(folder, 32, ("lasttoken",), max_seq_length=None, prompts={"query": f"Instruct: {TASK}\nQuery:", "document": ""})
    check_matters(model, probe(hf, 64), settings=[("rope_parameters.rope_theta", 10000.0)])
    st = sentence_transformer(folder)
    requests = TEXTS + [{"text": t, "prompt_name": "query"} for t in (FOX, "What is the capital of China?", UNICODE, OVER)] + [{"text": FOX, "prompt_name": "document"}, {"text": "What is the capital of China?", "instruction": OTHER_TASK}]
    requests += [{"text": t, "prompt_name": "query", "truncate_dim": 8, "normalize": True} for t in (FOX, UNICODE)] + [{"text": FOX, "truncate_dim": 24, "normalize": True}, {"text": FOX, "truncate_dim": 8}]
    embeddings = embed(st, requests, sides=("right", "left"))
    differ(embeddings[:7], "qwen3-embedding")
    end = tokenizer.token_to_id("<|endoftext|>")
    rows = hidden(model, hf, 64, [FOX, "fox", OVER])
    assert all(r["tokens"][-1] == end for r in rows) and len(rows[2]["tokens"]) == 64
    same(embeddings[0]["vector"], torch.nn.functional.normalize(torch.tensor(rows[0]["last_hidden_state"][-1]), dim=0), "last token, by hand")
    finish(folder, {"source": source(model, "SentenceTransformer"), "hidden": rows, "embeddings": embeddings})


PREFIX = '<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


@torch.no_grad()
def judge(model, tokenizer, requests, max_length):
    """As published: prefix, body and suffix cut into tokens apart, only the body truncated; logits of "no" and "yes" at the last token.
    Each alone, then all in one batch padded on the left and one padded on the right."""
    prefix, suffix = (tokenizer.encode(t, add_special_tokens=False) for t in (PREFIX, SUFFIX))
    answers = [tokenizer.convert_tokens_to_ids(t) for t in ("no", "yes")]
    out = []
    for request in requests:
        body = f"<Instruct>: {request.get('instruction', TASK)}\n<Query>: {request['query']}\n<Document>: {request['document']}"
        body = tokenizer(body, truncation="longest_first", max_length=max_length - len(prefix) - len(suffix), return_attention_mask=False)["input_ids"]
        ids = prefix + body + suffix
        logits = model(torch.tensor([ids])).logits[0, -1, answers]
        out.append(request | {"tokens": ids, "logits": floats(logits), "probabilities": floats(torch.softmax(logits, -1))})
    longest = max(len(i["tokens"]) for i in out)
    for left in (True, False):
        pads = [[tokenizer.pad_token_id] * (longest - len(i["tokens"])) for i in out]
        ids = torch.tensor([p + i["tokens"] if left else i["tokens"] + p for i, p in zip(out, pads)])
        mask = torch.tensor([[0] * len(p) + [1] * len(i["tokens"]) if left else [1] * len(i["tokens"]) + [0] * len(p) for i, p in zip(out, pads)])
        logits = model(input_ids=ids, attention_mask=mask).logits
        for i, (item, rows) in enumerate(zip(out, logits)): same(rows[-1 if left else len(item["tokens"]) - 1, answers], item["logits"], "judged in a batch", 3e-5)
    return out


@case
def qwen3_reranker():
    """Scores: `logits` and `probabilities` are of [no, yes]; the score is the second. Names with `model.`, the head tied."""
    tokenizer = qwen_tokenizer(380, False, words=("yes", "no"), corpus=[PREFIX.replace("<|im_start|>", "").replace("<|im_end|>", ""), "<Instruct>: \n<Query>: \n<Document>: ", SUFFIX] * 3, plain=("<think>", "</think>"))
    config = with_ends(tokenizer, QWEN3) | {"max_position_embeddings": 192, "eos_token_id": tokenizer.token_to_id("<|im_end|>"), "rope_theta": 1000000}
    folder, model, hf = checkpoint("qwen3-reranker", config, AutoModelForCausalLM, tokenizer, qwen_tokens(tokenizer, 192), 32, dtype=torch.bfloat16)
    write(folder / "generation_config.json", {"bos_token_id": config["bos_token_id"], "do_sample": True, "eos_token_id": [config["eos_token_id"], config["bos_token_id"]], "temperature": 0.6, "top_k": 20, "top_p": 0.95})
    requests = [{"query": a, "document": b} for a, b in PAIRS] + [{"query": "Explain gravity", "document": GRAVITY, "instruction": OTHER_TASK}, {"query": "Explain gravity", "document": "The answer is \"yes\".\n<Query>: no"}]
    scores = judge(model, hf, requests, 192)
    assert len(scores[3]["tokens"]) == 192 > len(scores[2]["tokens"])
    differ(scores, "qwen3-reranker")
    finish(folder, {"source": source(model, "the published prompt and scoring"), "prefix": PREFIX, "suffix": SUFFIX, "instruction": TASK, "scores": scores})


# ---------------------------------------------------------------- EmbeddingGemma

GEMMA = {"_sliding_window_pattern": 3, "architectures": ["Gemma3TextModel"], "attention_bias": False, "attention_dropout": 0.0, "attn_logit_softcapping": None, "bos_token_id": 2, "dtype": "float32", "eos_token_id": 1, "final_logit_softcapping": None,
         "head_dim": 16, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 32, "initializer_range": 0.02, "intermediate_size": 40, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
         "max_position_embeddings": 64, "model_type": "gemma3_text", "num_attention_heads": 2, "num_hidden_layers": 3, "num_key_value_heads": 1, "pad_token_id": 0, "query_pre_attn_scalar": 24, "rms_norm_eps": 1e-6, "rope_local_base_freq": 10000.0,
         "rope_scaling": None, "rope_theta": 1000000.0, "sliding_window": 8, "transformers_version": "4.57.0.dev0", "use_bidirectional_attention": True, "use_cache": True, "vocab_size": 0}
GEMMA_TOKENS = {"add_bos_token": True, "add_eos_token": True, "bos_token": "<bos>", "clean_up_tokenization_spaces": False, "eos_token": "<eos>", "model_max_length": 64, "pad_token": "<pad>", "padding_side": "right", "sp_model_kwargs": None,
                "spaces_between_special_tokens": False, "tokenizer_class": "GemmaTokenizer", "unk_token": "<unk>", "use_default_system_prompt": False}
GEMMA_PROMPTS = {"query": "task: search result | query: ", "document": "title: none | text: ", "Clustering": "task: clustering | query: ", "STS": "task: sentence similarity | query: "}


@case
def embeddinggemma():
    """Attention both ways, in windows too (4 tokens to each side of 8); mean, two Dense layers without bias or activation, Normalize; <bos> and <eos>."""
    folder, model, hf = checkpoint("embeddinggemma", GEMMA, AutoModel, tokens.gemma(400), GEMMA_TOKENS, 33, dtype=torch.bfloat16, rename=without_prefix)
    st_files(folder, 32, max_seq_length=64, dense=[dense_module(32, 64, False, "linear.Identity", 331), dense_module(64, 32, False, "linear.Identity", 332)], prompts=GEMMA_PROMPTS)
    check_matters(model, probe(hf, 64), settings=[("rope_parameters.full_attention.rope_theta", 10000.0), ("rope_parameters.sliding_attention.rope_theta", 1e6), ("sliding_window", 4), ("sliding_window", 6), ("query_pre_attn_scalar", 16), ("use_bidirectional_attention", False), ("hidden_activation", "gelu")])
    st = sentence_transformer(folder)
    requests = TEXTS + [{"text": t, "prompt_name": p} for t in (FOX, OVER) for p in ("query", "document")] + [{"text": FOX, "truncate_dim": 16, "normalize": True}, {"text": FOX, "prompt_name": "query", "truncate_dim": 8, "normalize": True}]
    embeddings = embed(st, requests, sides=("right", "left"))
    differ(embeddings[:7], "embeddinggemma")
    finish(folder, {"source": source(model, "SentenceTransformer"), "hidden": hidden(model, hf, 64, [FOX, "fox", LONG]), "embeddings": embeddings})


# ---------------------------------------------------------------- plain decoders by their pooling

@case
def qwen2_embedding():
    """Causal, query and key and value biases, names with `model.`; the mean weighted by position, without the prompt's tokens."""
    config = {k: v for k, v in QWEN3.items() if k not in ("attention_bias", "head_dim")} | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "tie_word_embeddings": True}
    tokenizer = qwen_tokenizer(340, False)
    folder, model, hf = checkpoint("qwen2-embedding", with_ends(tokenizer, config), AutoModel, tokenizer, qwen_tokens(tokenizer, 64), 34, dtype=torch.bfloat16, rename=with_prefix)
    st_files(folder, 32, ("weightedmean",), include_prompt=False, max_seq_length=60, prompts={"query": "Instruct: a text\nQuery: "}, normalize=False)
    check_matters(model, probe(hf, 64), ignore=("k_proj.bias",))
    st = sentence_transformer(folder)
    embeddings = embed(st, TEXTS + [{"text": FOX, "prompt_name": "query"}, {"text": UNICODE, "prompt_name": "query"}, {"text": FOX, "normalize": True}], sides=("right", "left"))
    differ(embeddings[:7], "qwen2-embedding")
    finish(folder, {"source": source(model, "SentenceTransformer"), "hidden": hidden(model, hf, 64, [FOX, "fox", LONG]), "embeddings": embeddings})


@case
def llama_embedding_mean():
    """Causal, a <s> before the text, the mean of all tokens, Normalize."""
    config = {"architectures": ["LlamaModel"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 0, "eos_token_id": 1, "hidden_act": "silu", "hidden_size": 32, "initializer_range": 0.02, "intermediate_size": 40, "max_position_embeddings": 64,
              "mlp_bias": False, "model_type": "llama", "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2, "pretraining_tp": 1, "rms_norm_eps": 1e-5, "rope_scaling": None, "rope_theta": 500000.0, "tie_word_embeddings": False,
              "torch_dtype": "bfloat16", "transformers_version": "4.45.0", "use_cache": True, "vocab_size": 0}
    tokenizer = tokens.byte_bpe(330, first=["<s>", "</s>", "<pad>"])
    tokenizer.post_processor = tokens.processors.TemplateProcessing(single="<s>:0 $A:0", pair="<s>:0 $A:0 <s>:1 $B:1", special_tokens=[("<s>", 0)])
    settings = {"bos_token": "<s>", "clean_up_tokenization_spaces": True, "eos_token": "</s>", "model_input_names": ["input_ids", "attention_mask"], "model_max_length": 64, "pad_token": "<pad>", "tokenizer_class": "PreTrainedTokenizerFast"}
    folder, model, hf = checkpoint("llama-embedding-mean", config, AutoModel, tokenizer, settings, 35, dtype=torch.bfloat16)
    st_files(folder, 32, max_seq_length=56)
    check_matters(model, probe(hf, 64), settings=[("rope_parameters.rope_theta", 10000.0)])
    st = sentence_transformer(folder)
    embeddings = embed(st, TEXTS, sides=("right", "left"))
    differ(embeddings[:7], "llama-embedding-mean")
    finish(folder, {"source": source(model, "SentenceTransformer"), "hidden": hidden(model, hf, 64, [FOX, "fox", LONG]), "embeddings": embeddings})
