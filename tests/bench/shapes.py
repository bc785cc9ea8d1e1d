"""Writes a GGUF file of a known model's shape with random weights, to be timed: hanzo-engine bench FILE, llama-bench -m FILE.

    pip install gguf numpy
    python shapes.py gemma-3-1b out.gguf
    python shapes.py qwen3-30b-a3b out.gguf --layers 4
    python shapes.py qwen3-0.6b out.gguf                        # 1.2 GB of F16, to quantise and to load with --isq
    python shapes.py qwen3-0.6b-gptq folder                     # or -awq: safetensors of four bits, for hanzo-engine bench folder
    python shapes.py deepseek-v2-lite out.gguf --experts 12     # llama.cpp knows the lite ones by their 27 layers
    python shapes.py qwen2.5-vl-3b m.gguf --layers 2; python shapes.py qwen2.5-vl-3b-tower mmproj-m.gguf    # for towers.py

Every matrix is of the type that the model's most downloaded file has, its blocks made of random bytes under scales that keep
numbers of the size that trained weights have. With --layers or --experts there are fewer of them, so that it fits a small machine: what
counts is the speed beside another engine's on the same file. The vocabulary is as large as the model's, and says nothing.
"""
import argparse
import json
import pathlib

import gguf
import numpy as np

T = gguf.GGMLQuantizationType
RNG = np.random.default_rng(0)
SIGMA = 0.02  # of weights, about
EXPERTS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")


def blocks(kind, count):
    """So many blocks of a type, as bytes: (count, bytes of a block)."""
    size = gguf.GGML_QUANT_SIZES[kind][1]
    if kind == T.F16:
        return np.resize((RNG.standard_normal(min(count, 1 << 20), dtype=np.float32) * SIGMA).astype(np.float16).view(np.uint8), (count, size))
    # A megabyte of random bytes again and again: a file is made as fast as it is written, and no kernel sees the difference.
    some = min(count, (1 << 20) // size)
    block = RNG.integers(0, 256, (some, size), dtype=np.uint8)
    put = lambda at, value: block.__setitem__((slice(None), slice(at, at + 2)), np.frombuffer(np.float16(value).tobytes(), np.uint8))
    if kind == T.Q4_K:
        put(0, SIGMA / 32 / 4), put(2, SIGMA / 32 / 4 * 7)
    elif kind == T.Q5_K:
        put(0, SIGMA / 32 / 8), put(2, SIGMA / 32 / 8 * 15)
    elif kind == T.Q6_K:
        put(208, SIGMA / 64 / 16)
    elif kind == T.Q8_0:
        put(0, SIGMA / 64)
    elif kind == T.MXFP4:
        block[:, 0] = 127 - 7  # 1/128, of numbers up to 12
    else:
        raise SystemExit(f"no blocks of {kind.name}")
    return np.resize(block, (count, size))


class File:
    def __init__(self, path, architecture, layers, kind):
        self.writer, self.layers, self.kind = gguf.GGUFWriter(path, architecture), layers, kind
        self.writer.add_name(f"{architecture} of random weights")
        self.writer.add_block_count(layers)

    def vocabulary(self, tokens, model="gpt2", pre="qwen2", special=()):
        """Bytes as GPT-2 spells them, words, and what no text becomes."""
        kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [byte for byte in range(256) if byte not in kept]
        names = [chr(byte) for byte in kept] + [chr(256 + place) for place in range(len(others))]
        names += [f"w{number}" for number in range(tokens - 257 - len(special))] + [*special, "<|end|>"]
        writer = self.writer
        writer.add_tokenizer_model(model), writer.add_tokenizer_pre(pre)
        writer.add_token_list(names), writer.add_token_types([1] * (tokens - 1 - len(special)) + [3] * (1 + len(special)))
        writer.add_token_merges(["t h"]), writer.add_eos_token_id(tokens - 1), writer.add_bos_token_id(tokens - 1)
        writer.add_add_bos_token(False), writer.add_vocab_size(tokens)

    def matrix(self, name, *shape, kind=None):
        kind = kind or self.kind
        weights, _ = gguf.GGML_QUANT_SIZES[kind]
        # As quantisers do it, rows that are no whole blocks are of another type.
        for other in (T.Q8_0, T.F16):
            if shape[-1] % weights:
                kind, weights = other, gguf.GGML_QUANT_SIZES[other][0]
        count = int(np.prod(shape)) // weights
        data = blocks(kind, count).reshape(*shape[:-1], -1)
        self.writer.add_tensor(name, data, raw_dtype=kind)

    def numbers(self, name, *shape, value=None):
        data = RNG.standard_normal(shape, dtype=np.float32) * SIGMA if value is None else np.full(shape, value, np.float32)
        self.writer.add_tensor(name, data.astype(np.float32))

    def done(self):
        self.writer.write_header_to_file(), self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file(progress=True), self.writer.close()


def gemma3_1b(path, layers, _):
    hidden, ffn, heads, head = 1152, 6912, 4, 256
    file = File(path, "gemma3", layers or 26, T.Q4_K)
    w = file.writer
    w.add_context_length(32768), w.add_embedding_length(hidden), w.add_feed_forward_length(ffn), w.add_head_count(heads)
    w.add_head_count_kv(1), w.add_key_length(head), w.add_value_length(head), w.add_rope_freq_base(1e6)
    w.add_layer_norm_rms_eps(1e-6), w.add_sliding_window(512)
    file.vocabulary(262144)
    file.matrix("token_embd.weight", 262144, hidden, kind=T.Q8_0), file.numbers("output_norm.weight", hidden, value=1)
    for layer in range(file.layers):
        p = f"blk.{layer}."
        for norm in ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"]:
            file.numbers(f"{p}{norm}.weight", hidden, value=1)
        file.numbers(p + "attn_q_norm.weight", head, value=1), file.numbers(p + "attn_k_norm.weight", head, value=1)
        file.matrix(p + "attn_q.weight", heads * head, hidden), file.matrix(p + "attn_k.weight", head, hidden)
        file.matrix(p + "attn_v.weight", head, hidden), file.matrix(p + "attn_output.weight", hidden, heads * head)
        file.matrix(p + "ffn_gate.weight", ffn, hidden), file.matrix(p + "ffn_up.weight", ffn, hidden)
        file.matrix(p + "ffn_down.weight", hidden, ffn, kind=T.Q6_K)
    file.done()


def qwen3(path, layers, widths, kind=T.F16, tied=True):
    hidden, ffn, heads, kv, head = widths
    file = File(path, "qwen3", layers, kind)
    w = file.writer
    w.add_context_length(40960), w.add_embedding_length(hidden), w.add_feed_forward_length(ffn), w.add_head_count(heads)
    w.add_head_count_kv(kv), w.add_key_length(head), w.add_value_length(head), w.add_rope_freq_base(1e6), w.add_layer_norm_rms_eps(1e-6)
    file.vocabulary(151936)
    file.matrix("token_embd.weight", 151936, hidden), file.numbers("output_norm.weight", hidden, value=1)
    if not tied:
        file.matrix("output.weight", 151936, hidden, kind=T.Q6_K if kind == T.Q4_K else kind)
    for layer in range(file.layers):
        p = f"blk.{layer}."
        # As a Q4_K_M file has them: half of these are of more bits.
        finer = T.Q6_K if kind == T.Q4_K and layer % 2 == 0 else kind
        file.numbers(p + "attn_norm.weight", hidden, value=1), file.numbers(p + "ffn_norm.weight", hidden, value=1)
        file.numbers(p + "attn_q_norm.weight", head, value=1), file.numbers(p + "attn_k_norm.weight", head, value=1)
        file.matrix(p + "attn_q.weight", heads * head, hidden), file.matrix(p + "attn_k.weight", kv * head, hidden)
        file.matrix(p + "attn_v.weight", kv * head, hidden, kind=finer), file.matrix(p + "attn_output.weight", hidden, heads * head)
        file.matrix(p + "ffn_gate.weight", ffn, hidden), file.matrix(p + "ffn_up.weight", ffn, hidden)
        file.matrix(p + "ffn_down.weight", hidden, ffn, kind=finer)
    file.done()


def qwen3_06b(path, layers, _):
    qwen3(path, layers or 28, (1024, 3072, 16, 8, 128))


def qwen3_4b(path, layers, _):
    qwen3(path, layers or 36, (2560, 9728, 32, 8, 128))


def qwen3_8b(path, layers, _):
    qwen3(path, layers or 36, (4096, 12288, 32, 8, 128), tied=False)


def qwen3_8b_q4_k_m(path, layers, _):
    qwen3(path, layers or 36, (4096, 12288, 32, 8, 128), T.Q4_K, tied=False)


def qwen3_30b_a3b(path, layers, experts):
    hidden, ffn, heads, kv, head, experts = 2048, 768, 32, 4, 128, experts or 128
    file = File(path, "qwen3moe", layers or 48, T.Q4_K)
    w = file.writer
    w.add_context_length(40960), w.add_embedding_length(hidden), w.add_feed_forward_length(6144), w.add_head_count(heads)
    w.add_head_count_kv(kv), w.add_key_length(head), w.add_value_length(head), w.add_rope_freq_base(1e6)
    w.add_layer_norm_rms_eps(1e-6), w.add_expert_count(experts), w.add_expert_used_count(8), w.add_expert_feed_forward_length(ffn)
    file.vocabulary(151936)
    file.matrix("token_embd.weight", 151936, hidden), file.matrix("output.weight", 151936, hidden, kind=T.Q6_K)
    file.numbers("output_norm.weight", hidden, value=1)
    for layer in range(file.layers):
        p = f"blk.{layer}."
        file.numbers(p + "attn_norm.weight", hidden, value=1), file.numbers(p + "ffn_norm.weight", hidden, value=1)
        file.numbers(p + "attn_q_norm.weight", head, value=1), file.numbers(p + "attn_k_norm.weight", head, value=1)
        file.matrix(p + "attn_q.weight", heads * head, hidden), file.matrix(p + "attn_k.weight", kv * head, hidden)
        file.matrix(p + "attn_v.weight", kv * head, hidden), file.matrix(p + "attn_output.weight", hidden, heads * head)
        file.numbers(p + "ffn_gate_inp.weight", experts, hidden)
        file.matrix(p + "ffn_gate_exps.weight", experts, ffn, hidden), file.matrix(p + "ffn_up_exps.weight", experts, ffn, hidden)
        file.matrix(p + "ffn_down_exps.weight", experts, hidden, ffn, kind=T.Q6_K)
    file.done()


def deepseek_v2_lite(path, layers, experts):
    hidden, ffn, dense, heads, rank, nope, rope, value = 2048, 1408, 10944, 16, 512, 128, 64, 128
    experts = experts or 64
    file = File(path, "deepseek2", layers or 27, T.Q4_K)
    w = file.writer
    w.add_context_length(163840), w.add_embedding_length(hidden), w.add_feed_forward_length(dense), w.add_head_count(heads)
    w.add_head_count_kv(1), w.add_key_length(rank + rope), w.add_value_length(rank), w.add_key_length_mla(nope + rope)
    w.add_value_length_mla(value), w.add_rope_freq_base(1e4), w.add_layer_norm_rms_eps(1e-6), w.add_rope_dimension_count(rope)
    w.add_kv_lora_rank(rank), w.add_leading_dense_block_count(1), w.add_expert_count(experts), w.add_expert_used_count(6)
    w.add_expert_shared_count(2), w.add_expert_feed_forward_length(ffn), w.add_expert_weights_scale(1.0)
    w.add_expert_weights_norm(False), w.add_expert_gating_func(gguf.ExpertGatingFuncType.SOFTMAX)
    w.add_rope_scaling_type(gguf.RopeScalingType.YARN), w.add_rope_scaling_factor(40.0)
    w.add_rope_scaling_orig_ctx_len(4096), w.add_rope_scaling_yarn_log_mul(0.0707)
    file.vocabulary(102400, pre="deepseek-llm")
    file.matrix("token_embd.weight", 102400, hidden), file.matrix("output.weight", 102400, hidden, kind=T.Q6_K)
    file.numbers("output_norm.weight", hidden, value=1)
    for layer in range(file.layers):
        p = f"blk.{layer}."
        file.numbers(p + "attn_norm.weight", hidden, value=1), file.numbers(p + "ffn_norm.weight", hidden, value=1)
        file.numbers(p + "attn_kv_a_norm.weight", rank, value=1)
        file.matrix(p + "attn_q.weight", heads * (nope + rope), hidden), file.matrix(p + "attn_kv_a_mqa.weight", rank + rope, hidden)
        file.matrix(p + "attn_k_b.weight", heads, rank, nope, kind=T.Q8_0), file.matrix(p + "attn_v_b.weight", heads, value, rank, kind=T.Q8_0)
        file.matrix(p + "attn_output.weight", hidden, heads * value)
        if layer == 0:
            file.matrix(p + "ffn_gate.weight", dense, hidden), file.matrix(p + "ffn_up.weight", dense, hidden)
            file.matrix(p + "ffn_down.weight", hidden, dense)
            continue
        file.numbers(p + "ffn_gate_inp.weight", experts, hidden)
        file.matrix(p + "ffn_gate_exps.weight", experts, ffn, hidden), file.matrix(p + "ffn_up_exps.weight", experts, ffn, hidden)
        file.matrix(p + "ffn_down_exps.weight", experts, hidden, ffn)
        file.matrix(p + "ffn_gate_shexp.weight", 2 * ffn, hidden), file.matrix(p + "ffn_up_shexp.weight", 2 * ffn, hidden)
        file.matrix(p + "ffn_down_shexp.weight", hidden, 2 * ffn, kind=T.Q6_K)
    file.done()


def gpt_oss_20b(path, layers, experts):
    hidden, ffn, heads, kv, head, experts = 2880, 2880, 64, 8, 64, experts or 32
    file = File(path, "gpt-oss", layers or 24, T.Q8_0)
    w = file.writer
    w.add_context_length(131072), w.add_embedding_length(hidden), w.add_feed_forward_length(ffn), w.add_head_count(heads)
    w.add_head_count_kv(kv), w.add_key_length(head), w.add_value_length(head), w.add_rope_freq_base(150000.0)
    w.add_layer_norm_rms_eps(1e-5), w.add_expert_count(experts), w.add_expert_used_count(4), w.add_expert_feed_forward_length(ffn)
    w.add_sliding_window(128), w.add_rope_scaling_type(gguf.RopeScalingType.YARN), w.add_rope_scaling_factor(32.0)
    w.add_rope_scaling_orig_ctx_len(4096)
    file.vocabulary(201088, pre="gpt-4o")
    file.matrix("token_embd.weight", 201088, hidden), file.matrix("output.weight", 201088, hidden)
    file.numbers("output_norm.weight", hidden, value=1)
    for layer in range(file.layers):
        p = f"blk.{layer}."
        file.numbers(p + "attn_norm.weight", hidden, value=1), file.numbers(p + "post_attention_norm.weight", hidden, value=1)
        for name, rows in [("attn_q", heads * head), ("attn_k", kv * head), ("attn_v", kv * head)]:
            file.matrix(f"{p}{name}.weight", rows, hidden), file.numbers(f"{p}{name}.bias", rows)
        file.matrix(p + "attn_output.weight", hidden, heads * head), file.numbers(p + "attn_output.bias", hidden)
        file.numbers(p + "attn_sinks.weight", heads)
        file.numbers(p + "ffn_gate_inp.weight", experts, hidden), file.numbers(p + "ffn_gate_inp.bias", experts)
        for name in EXPERTS:
            file.matrix(f"{p}{name}.weight", experts, ffn, hidden, kind=T.MXFP4), file.numbers(f"{p}{name}.bias", experts, ffn)
    file.done()


TALK = ("{% for message in messages %}<|im_start|>{{ message['role'] }}\n{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
        "{% if part['type'] in ['image', 'image_url'] %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


def qwen25_vl_3b(path, layers, _):
    hidden, ffn, heads, kv, head = 2048, 11008, 16, 2, 128
    file = File(path, "qwen2vl", layers or 36, T.Q4_K)
    w = file.writer
    w.add_context_length(128000), w.add_embedding_length(hidden), w.add_feed_forward_length(ffn), w.add_head_count(heads)
    w.add_head_count_kv(kv), w.add_rope_freq_base(1e6), w.add_layer_norm_rms_eps(1e-6), w.add_rope_dimension_sections([16, 24, 24, 0])
    file.vocabulary(151936, special=["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"])
    w.add_chat_template(TALK)
    file.matrix("token_embd.weight", 151936, hidden, kind=T.Q6_K), file.numbers("output_norm.weight", hidden, value=1)
    for layer in range(file.layers):
        p = f"blk.{layer}."
        finer = T.Q6_K if layer % 2 == 0 else T.Q4_K
        file.numbers(p + "attn_norm.weight", hidden, value=1), file.numbers(p + "ffn_norm.weight", hidden, value=1)
        for name, rows, kind in [("attn_q", heads * head, T.Q4_K), ("attn_k", kv * head, T.Q4_K), ("attn_v", kv * head, finer)]:
            file.matrix(f"{p}{name}.weight", rows, hidden, kind=kind), file.numbers(f"{p}{name}.bias", rows)
        file.matrix(p + "attn_output.weight", hidden, heads * head)
        file.matrix(p + "ffn_gate.weight", ffn, hidden), file.matrix(p + "ffn_up.weight", ffn, hidden)
        file.matrix(p + "ffn_down.weight", hidden, ffn, kind=finer)
    file.done()


def qwen25_vl_3b_tower(path, layers, _, kind=T.F16):
    hidden, ffn, text, patch = 1280, 3420, 2048, 14
    file = File(path, "clip", layers or 32, kind)
    w = file.writer
    w.add_type("mmproj"), w.add_clip_has_vision_encoder(True), w.add_clip_projector_type("qwen2.5vl_merger"), w.add_vision_projection_dim(text)
    w.add_vision_image_size(560), w.add_vision_patch_size(patch), w.add_vision_embedding_length(hidden), w.add_vision_feed_forward_length(ffn)
    w.add_vision_block_count(file.layers), w.add_vision_head_count(16), w.add_vision_n_wa_pattern(8), w.add_vision_attention_layernorm_eps(1e-6)
    w.add_vision_image_mean([0.48145466, 0.4578275, 0.40821073]), w.add_vision_image_std([0.26862954, 0.26130258, 0.27577711]), w.add_vision_use_silu(True)
    file.numbers("v.patch_embd.weight", hidden, 3, patch, patch), file.numbers("v.patch_embd.weight.1", hidden, 3, patch, patch)
    for layer in range(file.layers):
        p = f"v.blk.{layer}."
        file.numbers(p + "ln1.weight", hidden, value=1), file.numbers(p + "ln2.weight", hidden, value=1)
        for name, rows, cols in [*((f"attn_{one}", hidden, hidden) for one in ("q", "k", "v", "out")), ("ffn_gate", ffn, hidden), ("ffn_up", ffn, hidden), ("ffn_down", hidden, ffn)]:
            file.matrix(f"{p}{name}.weight", rows, cols), file.numbers(f"{p}{name}.bias", rows)
    file.numbers("v.post_ln.weight", hidden, value=1)
    for name, rows in [("mm.0", 4 * hidden), ("mm.2", text)]:
        file.matrix(f"{name}.weight", rows, 4 * hidden), file.numbers(f"{name}.bias", rows)
    file.done()


def qwen25_vl_3b_tower_q8_0(path, layers, _):
    qwen25_vl_3b_tower(path, layers, _, T.Q8_0)


def packed(path, method, layers):
    """A folder of safetensors in Qwen3-0.6B's shape whose layers are four bits in groups of 128, as GPTQ's or AWQ's tools pack them."""
    hidden, ffn, heads, kv, head, group, vocabulary = 1024, 3072, 16, 8, 128, 128, 151936
    layers, tensors = layers or 28, {}

    def matrix(name, rows, columns):
        words = lambda *shape: RNG.integers(0, 1 << 32, shape, dtype=np.uint32).view(np.int32)
        if method == "gptq":
            tensors[f"{name}.qweight"] = words(columns // 8, rows)
            tensors[f"{name}.g_idx"] = (np.arange(columns) // group).astype(np.int32)
        else:
            tensors[f"{name}.qweight"] = words(columns, rows // 8)
        # A zero of 8, which GPTQ writes as one less.
        tensors[f"{name}.qzeros"] = np.full((columns // group, rows // 8), 0x77777777 if method == "gptq" else 0x88888888, np.uint32).view(np.int32)
        tensors[f"{name}.scales"] = np.full((columns // group, rows), SIGMA / 4, np.float16)

    ones = lambda length: np.ones(length, np.float16)
    tensors["model.embed_tokens.weight"] = np.resize((RNG.standard_normal(1 << 20, dtype=np.float32) * SIGMA).astype(np.float16), (vocabulary, hidden))
    tensors["model.norm.weight"] = ones(hidden)
    for layer in range(layers):
        p = f"model.layers.{layer}."
        for name, length in (("input_layernorm", hidden), ("post_attention_layernorm", hidden), ("self_attn.q_norm", head), ("self_attn.k_norm", head)):
            tensors[f"{p}{name}.weight"] = ones(length)
        for name, rows, columns in (("self_attn.q_proj", heads * head, hidden), ("self_attn.k_proj", kv * head, hidden), ("self_attn.v_proj", kv * head, hidden),
                                    ("self_attn.o_proj", hidden, heads * head), ("mlp.gate_proj", ffn, hidden), ("mlp.up_proj", ffn, hidden), ("mlp.down_proj", hidden, ffn)):
            matrix(p + name, rows, columns)
    kinds = {np.dtype(np.int32): "I32", np.dtype(np.float16): "F16"}
    header, at = {}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": kinds[tensor.dtype], "shape": tensor.shape, "data_offsets": [at, at := at + tensor.nbytes]}
    words = {"gptq": {"quant_method": "gptq", "bits": 4, "group_size": group, "desc_act": False, "sym": True},
             "awq": {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True}}[method]
    config = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": layers,
              "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": head, "rms_norm_eps": 1e-6, "hidden_act": "silu", "max_position_embeddings": 40960,
              "rope_theta": 1e6, "tie_word_embeddings": True, "vocab_size": vocabulary, "eos_token_id": 255, "torch_dtype": "float16", "quantization_config": words}
    letters = [chr(byte) if 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte else None for byte in range(256)]
    others = iter(range(256, 512))
    letters = [letter or chr(next(others)) for letter in letters]
    tokenizer = {"version": "1.0", "added_tokens": [], "normalizer": None, "post_processor": None, "decoder": {"type": "ByteLevel"},
                 "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True},
                 "model": {"type": "BPE", "vocab": {**{letter: at for at, letter in enumerate(letters)}, **{f"<{at}>": at for at in range(256, vocabulary)}}, "merges": []}}
    folder = pathlib.Path(path)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with open(folder / "model.safetensors", "wb") as out:
        head = json.dumps(header).encode()
        out.write(len(head).to_bytes(8, "little") + head)
        for tensor in tensors.values():
            tensor.tofile(out)


def qwen3_06b_gptq(path, layers, _):
    packed(path, "gptq", layers)


def qwen3_06b_awq(path, layers, _):
    packed(path, "awq", layers)


SHAPES = {"qwen3-0.6b-gptq": qwen3_06b_gptq, "qwen3-0.6b-awq": qwen3_06b_awq, "gemma-3-1b": gemma3_1b, "qwen3-0.6b": qwen3_06b, "qwen3-4b": qwen3_4b, "qwen3-8b": qwen3_8b, "qwen3-8b-q4_k_m": qwen3_8b_q4_k_m, "qwen3-30b-a3b": qwen3_30b_a3b, "deepseek-v2-lite": deepseek_v2_lite, "gpt-oss-20b": gpt_oss_20b,
          "qwen2.5-vl-3b": qwen25_vl_3b, "qwen2.5-vl-3b-tower": qwen25_vl_3b_tower, "qwen2.5-vl-3b-tower-q8_0": qwen25_vl_3b_tower_q8_0}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="writes a GGUF file of a known model's shape with random weights")
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("out")
    parser.add_argument("--layers", type=int, default=0, help="so many layers instead of all")
    parser.add_argument("--experts", type=int, default=0, help="so many experts a layer; a token goes to as many as ever")
    args = parser.parse_args()
    SHAPES[args.shape](args.out, args.layers, args.experts)
