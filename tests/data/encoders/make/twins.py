"""GGUF twins of some folders, with the keys, tensor names and order of rows that llama.cpp's converter writes (read from its sources)."""
import json

import gguf, numpy as np
from safetensors.torch import load_file

from reference import HERE

LAYERS = {
    "bert": {"attention.self.query": "attn_q", "attention.self.key": "attn_k", "attention.self.value": "attn_v", "attention.output.dense": "attn_output", "attention.output.LayerNorm": "attn_output_norm",
             "intermediate.dense": "ffn_up", "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm"},
    "nomic-bert": {"attn.Wqkv": "attn_qkv", "attn.out_proj": "attn_output", "mlp.fc11": "ffn_up", "mlp.fc12": "ffn_gate", "mlp.fc2": "ffn_down", "norm1": "attn_output_norm", "norm2": "layer_output_norm"},
    "qwen3": {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
              "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"},
}
OUTER = {"embeddings.word_embeddings": "token_embd", "embeddings.position_embeddings": "position_embd", "embeddings.token_type_embeddings": "token_types", "embeddings.LayerNorm": "token_embd_norm", "emb_ln": "token_embd_norm",
         "embed_tokens": "token_embd", "norm": "output_norm"}


def tensor_name(arch, name):
    name, kind = name.removeprefix("model.").rsplit(".", 1)
    if name in OUTER: return f"{OUTER[name]}.{kind}"
    parts = name.removeprefix("encoder.").split(".", 2)  # layer or layers, number, rest
    return f"blk.{parts[1]}.{LAYERS[arch][parts[2]]}.{kind}"


def add_tensors(writer, arch, weights):
    for name, w in weights.items():
        if name == "embeddings.position_ids" or name.startswith("pooler."): continue  # The converter drops both.
        new, a = tensor_name(arch, name), w.float().numpy()
        # Norms, biases and the small tables stay in F32; every weight here is the same number in F16.
        small = a.ndim == 1 or new.startswith(("position_embd", "token_types"))
        writer.add_tensor(new, np.ascontiguousarray(a if small else a.astype(np.float16)))


def shape(writer, config, layers, hidden, forward, heads, context):
    writer.add_type("model"); writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16); writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_block_count(config[layers]); writer.add_context_length(context); writer.add_embedding_length(config[hidden]); writer.add_feed_forward_length(config[forward]); writer.add_head_count(config[heads])


def close(writer):
    writer.write_header_to_file(); writer.write_kv_data_to_file(); writer.write_tensors_to_file(); writer.close()


def wordpiece_keys(writer, tokenizer):
    """Words get a lower one eighth block before them and continuations lose their ##; special tokens stay as they are."""
    vocabulary = sorted(tokenizer["model"]["vocab"].items(), key=lambda p: p[1])
    special = {t["content"]: t["id"] for t in tokenizer["added_tokens"]}
    writer.add_token_type_count(2)
    writer.add_tokenizer_model("bert"); writer.add_tokenizer_pre("jina-v2-en")
    writer.add_token_list([t if t in special else t[2:] if t.startswith("##") else "▁" + t for t, _ in vocabulary])
    writer.add_token_types([gguf.TokenType.CONTROL if t in special else gguf.TokenType.NORMAL for t, _ in vocabulary])
    writer.add_bos_token_id(special["[CLS]"]); writer.add_eos_token_id(special["[SEP]"]); writer.add_unk_token_id(special["[UNK]"]); writer.add_sep_token_id(special["[SEP]"]); writer.add_pad_token_id(special["[PAD]"])
    writer.add_mask_token_id(special["[MASK]"]); writer.add_add_bos_token(True); writer.add_add_eos_token(True); writer.add_add_sep_token(False)


def bert_twin(name):
    folder = HERE / name
    config, tokenizer = (json.loads((folder / f).read_text()) for f in ("config.json", "tokenizer.json"))
    nomic = config["model_type"] == "nomic_bert"
    arch = "nomic-bert" if nomic else "bert"
    writer = gguf.GGUFWriter(HERE / f"{name}.gguf", arch)
    writer.add_name(f"tiny-{name}")
    # The converter writes 2048 for nomic-embed-text-v1.5's n_positions of 8192.
    if nomic: shape(writer, config, "n_layer", "n_embd", "n_inner", "n_head", 2048); writer.add_rope_freq_base(config["rotary_emb_base"])
    else: shape(writer, config, "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", config["max_position_embeddings"])
    writer.add_layer_norm_eps(config["layer_norm_epsilon" if nomic else "layer_norm_eps"])
    writer.add_causal_attention(False); writer.add_pooling_type(gguf.PoolingType.MEAN)
    wordpiece_keys(writer, tokenizer)
    if not nomic: writer.add_bool("tokenizer.ggml.normalizer.lowercase", True)  # Only the newest converters write it.
    add_tensors(writer, arch, load_file(folder / "model.safetensors"))
    close(writer)


def qwen3_twin(name, file, pooling, add_eos):
    """`add_eos`: as converters since mid-2025 write it (True, or False for a reranker), or None for the older files that lack the key."""
    folder = HERE / name
    config, tokenizer = (json.loads((folder / f).read_text()) for f in ("config.json", "tokenizer.json"))
    weights = load_file(folder / "model.safetensors")
    writer = gguf.GGUFWriter(HERE / f"{file}.gguf", "qwen3")
    writer.add_name(f"tiny-{file}")
    shape(writer, config, "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", config["max_position_embeddings"])
    writer.add_head_count_kv(config["num_key_value_heads"]); writer.add_rope_freq_base(config["rope_theta"]); writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_key_length(config["head_dim"]); writer.add_value_length(config["head_dim"])
    writer.add_pooling_type(pooling)
    if pooling == gguf.PoolingType.RANK:
        from decoders import PREFIX, SUFFIX, TASK
        writer.add_classifier_output_labels(["yes", "no"])
        writer.add_chat_template([{"name": "rerank", "template": PREFIX + f"<Instruct>: {TASK}\n<Query>: {{query}}\n<Document>: {{document}}" + SUFFIX}])
    added = {t["content"]: t for t in tokenizer["added_tokens"]}
    vocabulary = sorted((tokenizer["model"]["vocab"] | {t: a["id"] for t, a in added.items()}).items(), key=lambda p: p[1])
    end, stop = added["<|endoftext|>"]["id"], added["<|im_end|>"]["id"]
    writer.add_tokenizer_model("gpt2"); writer.add_tokenizer_pre("qwen2"); writer.add_token_list([t for t, _ in vocabulary])
    writer.add_token_types([gguf.TokenType.NORMAL if t not in added else gguf.TokenType.CONTROL if added[t]["special"] else gguf.TokenType.USER_DEFINED for t, _ in vocabulary])
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]])
    writer.add_eos_token_id(config["eos_token_id"]); writer.add_pad_token_id(end); writer.add_bos_token_id(end)
    if config["eos_token_id"] != stop: writer.add_eot_token_id(stop)
    writer.add_add_bos_token(False)
    if add_eos is not None: writer.add_add_eos_token(add_eos)
    if pooling == gguf.PoolingType.RANK:
        word = tokenizer["model"]["vocab"]
        rows = weights["model.embed_tokens.weight"].float().numpy()[[word["yes"], word["no"]]]
        writer.add_tensor("cls.output.weight", np.ascontiguousarray(rows.astype(np.float16)))
    add_tensors(writer, "qwen3", weights)
    close(writer)


TWINS = {
    "bert-mean": lambda: bert_twin("bert-mean"),
    "nomic-bert": lambda: bert_twin("nomic-bert"),
    "qwen3-embedding": lambda: [qwen3_twin("qwen3-embedding", "qwen3-embedding", gguf.PoolingType.LAST, True), qwen3_twin("qwen3-embedding", "qwen3-embedding-without-eos", gguf.PoolingType.LAST, None)],
    "qwen3-reranker": lambda: qwen3_twin("qwen3-reranker", "qwen3-reranker", gguf.PoolingType.RANK, False),
}
