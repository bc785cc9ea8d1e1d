"""Makes the folders of Gemma 3n and 4 beside this file, as make_dense.py makes the others (which says what is in them).

    pip install torch transformers safetensors numpy gguf
    python make_gemma.py           # all, or: python make_gemma.py gemma4

`gemma4` is as the dense sizes are (values are keys in layers that see all), `gemma4-e` as E2B and E4B (embeddings for each layer, layers that
share keys and values, wider MLPs in those; as its makers publish them, its files have keys and values in all layers, which nothing reads), `gemma4-moe` as the mixture (experts beside an MLP). `gemma3n` is a text model of Gemma 3n, and ../multimodal/gemma3n another, named as it is inside of the
whole class, whose vision tower takes a library more (timm) and gives a text nothing; tokens behind the rows of its table for layers look up the first.
"""
import json, shutil, sys

import gguf, numpy as np, torch, transformers as t
from safetensors.torch import load_file, save_file

from make_dense import GREEDY, HERE, PLAIN, PROMPT, SIZES, VOCAB

S, F = "sliding_attention", "full_attention"
GEMMA4 = SIZES | dict(num_attention_heads=4, num_key_value_heads=2, head_dim=32, global_head_dim=64, sliding_window=10, final_logit_softcapping=4.0, hidden_size_per_layer_input=0,
                      rope_parameters={F: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}, S: PLAIN}, layer_types=[S, F, S, F])
KEYS = dict(attention_k_eq_v=True, num_global_key_value_heads=1)
GEMMA3N = SIZES | dict(num_hidden_layers=6, layer_types=[S, F] * 3, num_kv_shared_layers=2, sliding_window=10, final_logit_softcapping=4.0, hidden_size_per_layer_input=16, vocab_size_per_layer_input=VOCAB,
                       laurel_rank=8, activation_sparsity_pattern=[0.9, 0.6, 0.0, 0.8, 0.0, 0.0], rope_parameters={F: PLAIN | {"rope_theta": 1e6}, S: PLAIN})
CASES = {
    "gemma3n": (t.Gemma3nTextConfig, GEMMA3N),
    "../multimodal/gemma3n": (t.Gemma3nTextConfig, GEMMA3N | dict(num_hidden_layers=4, layer_types=[S, F] * 2, activation_sparsity_pattern=[0.9, 0.0, 0.0, 0.0], vocab_size_per_layer_input=120)),
    "gemma4": (t.Gemma4TextConfig, GEMMA4 | KEYS | dict(num_hidden_layers=4)),
    "gemma4-e": (t.Gemma4TextConfig, GEMMA4 | dict(num_hidden_layers=6, layer_types=[S, F, S, F, S, F], num_kv_shared_layers=2, use_double_wide_mlp=True, hidden_size_per_layer_input=16, vocab_size_per_layer_input=VOCAB,
                                                   num_key_value_heads=1, num_attention_heads=2)),
    "gemma4-moe": (t.Gemma4TextConfig, GEMMA4 | KEYS | dict(num_hidden_layers=4, enable_moe_block=True, num_experts=6, top_k_experts=2, moe_intermediate_size=16)),
}


def drawn(case, seed):
    """As make_dense's."""
    kind, settings = CASES[case]
    torch.manual_seed(seed)
    config = kind(**settings)
    model = t.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for name, p in list(model.named_parameters()) + [pair for pair in model.named_buffers() if "layer_scalar" in pair[0]]:
            x = torch.randn(p.shape)
            if "norm" in name or "scale" in name: x = 0.2 * x + 1
            elif "scalar" in name: x = 0.5 + torch.rand(p.shape)
            elif "modality_router" in name: x = 4.0 * x
            elif "_coefs" in name: x = 0.3 * x
            elif "embed" in name: x = 0.16 * x
            else: x = 0.22 * x
            # Scores are not divided by anything: norms keep them small, as trained ones do.
            if "q_norm" in name or "k_norm" in name: x = 0.4 * x
            p.copy_(x.bfloat16().float())
        ids = torch.randint(3, VOCAB, (1, PROMPT))
        margin = 1e9
        for _ in range(GREEDY):
            best = model(ids, use_cache=False).logits[0, -1].topk(2)
            margin = min(margin, float(best.values[0] - best.values[1]))
            ids = torch.cat([ids, best.indices[:1].view(1, 1)], dim=1)
        logits = model(ids[:, :-1], use_cache=False).logits[0].float()
    return config, model, ids[0], logits, margin / float(logits.max() - logits.min())


def write_gguf(path, config, weights):
    """As llama.cpp's Gemma4Model writes it."""
    layers, c = config.num_hidden_layers, config
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA4, layers)
    g = gguf.GGUFWriter(path, "gemma4")
    g.add_type("model"); g.add_name(f"tiny-{path.parent.name}"); g.add_license("apache-2.0"); g.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    g.add_context_length(c.max_position_embeddings); g.add_embedding_length(c.hidden_size); g.add_block_count(layers); g.add_head_count(c.num_attention_heads)
    shared, slides = c.num_kv_shared_layers, [kind == S for kind in c.layer_types]
    c.allow_global_per_layer_attribute_access = True
    full = c.per_layer_config[F]
    g.add_head_count_kv([c.num_key_value_heads if slide else full.num_key_value_heads for slide in slides] if c.attention_k_eq_v else c.num_key_value_heads)
    wide = c.use_double_wide_mlp
    g.add_feed_forward_length([c.intermediate_size * (2 if layer >= layers - shared else 1) for layer in range(layers)] if wide else c.intermediate_size)
    g.add_key_length(full.head_dim); g.add_value_length(full.head_dim); g.add_key_length_swa(c.head_dim); g.add_value_length_swa(c.head_dim)
    g.add_rope_dimension_count(full.head_dim); g.add_rope_dimension_count_swa(c.head_dim)
    g.add_rope_freq_base(c.rope_parameters[F]["rope_theta"]); g.add_rope_freq_base_swa(c.rope_parameters[S]["rope_theta"])
    g.add_sliding_window(c.sliding_window); g.add_sliding_window_pattern(slides); g.add_shared_kv_layers(shared)
    g.add_embedding_length_per_layer_input(c.hidden_size_per_layer_input); g.add_layer_norm_rms_eps(c.rms_norm_eps); g.add_final_logit_softcapping(c.final_logit_softcapping); g.add_vocab_size(VOCAB)
    if c.enable_moe_block: g.add_expert_count(c.num_experts); g.add_expert_used_count(c.top_k_experts); g.add_expert_feed_forward_length(c.moe_intermediate_size)
    turned = int(full.head_dim * c.rope_parameters[F]["partial_rotary_factor"] / 2)
    g.add_tensor("rope_freqs.weight", np.array([1.0] * turned + [1e30] * (full.head_dim // 2 - turned), dtype=np.float32))
    tokens = ["<unk>", "<s>", "</s>"] + [f"w{i}" for i in range(3, VOCAB)]
    g.add_tokenizer_model("gpt2"); g.add_tokenizer_pre("default"); g.add_token_list(tokens); g.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (VOCAB - 3)); g.add_token_merges([])
    g.add_bos_token_id(1); g.add_eos_token_id(2); g.add_add_bos_token(False)
    for key, tensor in weights.items():
        a, layer = tensor.float().numpy(), key.split(".")[2]
        if key.endswith("router.scale"): name = f"blk.{layer}.ffn_gate_inp.scale"
        elif key.endswith("per_expert_scale"): name = f"blk.{layer}.ffn_down_exps.scale"
        else:
            if "layer_scalar" in key or ".experts." in key: key += ".weight"
            name = names.get_name(key, try_suffixes=(".weight", ".bias"))
        assert name is not None, key
        if a.ndim == 1: g.add_tensor(name, np.ascontiguousarray(a))
        else: g.add_tensor(name, gguf.quants.quantize(np.ascontiguousarray(a), gguf.GGMLQuantizationType.BF16), raw_dtype=gguf.GGMLQuantizationType.BF16)
    g.write_header_to_file(); g.write_kv_data_to_file(); g.write_tensors_to_file(); g.close()


def write_gemma3n(path, config, weights):
    """As llama.cpp's Gemma3NModel writes it."""
    c, layers = config, config.num_hidden_layers
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA3N, layers)
    g = gguf.GGUFWriter(path, "gemma3n")
    g.add_type("model"); g.add_name(f"tiny-{path.parent.name}"); g.add_license("apache-2.0"); g.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    g.add_context_length(c.max_position_embeddings); g.add_embedding_length(c.hidden_size); g.add_block_count(layers); g.add_feed_forward_length(c.intermediate_size)
    g.add_head_count(c.num_attention_heads); g.add_head_count_kv(c.num_key_value_heads); g.add_key_length(c.head_dim); g.add_value_length(c.head_dim); g.add_layer_norm_rms_eps(c.rms_norm_eps)
    g.add_rope_freq_base(c.rope_parameters[F]["rope_theta"]); g.add_sliding_window(c.sliding_window); g.add_final_logit_softcapping(c.final_logit_softcapping); g.add_vocab_size(VOCAB)
    g.add_altup_active_idx(c.altup_active_idx); g.add_altup_num_inputs(c.altup_num_inputs); g.add_embedding_length_per_layer_input(c.hidden_size_per_layer_input); g.add_shared_kv_layers(c.num_kv_shared_layers)
    normal = torch.distributions.normal.Normal(0, 1)
    g.add_activation_sparsity_scale([normal.icdf(torch.tensor(share, dtype=torch.float32)).item() for share in c.activation_sparsity_pattern])
    g.add_sliding_window_pattern([kind == S for kind in c.layer_types])
    tokens = ["<unk>", "<s>", "</s>"] + [f"w{i}" for i in range(3, VOCAB)]
    g.add_tokenizer_model("gpt2"); g.add_tokenizer_pre("default"); g.add_token_list(tokens); g.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (VOCAB - 3)); g.add_token_merges([])
    g.add_bos_token_id(1); g.add_eos_token_id(2); g.add_add_bos_token(False)
    weights = dict(weights)
    for stem in ("altup_projections", "altup_unembed_projections"):
        weights[f"model.{stem}.weight"] = torch.stack([weights.pop(f"model.{stem}.{i}.weight") for i in range(c.altup_num_inputs - 1)])
    for key, tensor in weights.items():
        name, a = names.get_name(key + ".weight" * key.endswith("_scale"), try_suffixes=(".weight", ".bias")), tensor.float().numpy()
        assert name is not None, key
        if a.ndim == 1: g.add_tensor(name, np.ascontiguousarray(a))
        else: g.add_tensor(name, gguf.quants.quantize(np.ascontiguousarray(a), gguf.GGMLQuantizationType.BF16), raw_dtype=gguf.GGMLQuantizationType.BF16)
    g.write_header_to_file(); g.write_kv_data_to_file(); g.write_tensors_to_file(); g.close()


def make(case):
    # Not one token over and over, and then as clear as can be.
    best = max((drawn(case, seed) for seed in range(40)), key=lambda found: (min(len(set(found[2][PROMPT:].tolist())), 8), found[4]))
    config, model, ids, logits, margin = best
    folder = HERE / case
    shutil.rmtree(folder, ignore_errors=True); folder.mkdir()
    model.bfloat16().save_pretrained(folder)
    settings = json.loads((folder / "config.json").read_text()) | {"architectures": [type(model).__name__]}
    if case in ("gemma4", "gemma4-moe"):
        # As its makers published it.
        settings.pop("per_layer_config", None)
        settings |= dict(global_head_dim=64, num_global_key_value_heads=config.per_layer_config[F].num_key_value_heads)
    (folder / "config.json").write_text(json.dumps(settings, indent=1) + "\n")
    (folder / "generation_config.json").unlink(missing_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"): shutil.copy(HERE.parent / "tiny/llama3" / name, folder / name)
    weights = load_file(folder / "model.safetensors")
    if "multimodal" in case:
        text = settings | {"architectures": None}
        settings = dict(model_type="gemma3n", architectures=["Gemma3nForConditionalGeneration"], text_config=text, vision_config={"model_type": "gemma3n_vision"}, audio_config={"model_type": "gemma3n_audio"}, tie_word_embeddings=True)
        (folder / "config.json").write_text(json.dumps(settings, indent=1) + "\n")
        inside = {f"model.language_model.{key.removeprefix('model.')}": tensor for key, tensor in weights.items()}
        inside |= {f"model.{name}.weight": torch.ones(2, 2).bfloat16() for name in ("vision_tower.timm_model.conv_stem.conv", "audio_tower.conformer.0.norm", "embed_vision.embedding", "embed_audio.embedding")}
        save_file(inside, folder / "model.safetensors", metadata={"format": "pt"})
    else: finish(case, folder, config, weights)
    save_file({"prompt": ids[:PROMPT].int(), "greedy": ids[PROMPT:].int(), "logits": logits.contiguous()}, folder / "golden.safetensors")
    print(case, "margin", round(margin, 4), "logits", float(logits.min()), float(logits.max()), len(set(ids[PROMPT:].tolist())), "tokens")


def finish(case, folder, config, weights):
    for layer in range(config.num_hidden_layers - config.num_kv_shared_layers, config.num_hidden_layers):
        own = config.head_dim if case == "gemma3n" else config.per_layer_config[layer].head_dim
        for part in "kv": weights[f"model.layers.{layer}.self_attn.{part}_proj.weight"] = torch.randn(own, 32).bfloat16()
        weights[f"model.layers.{layer}.self_attn.k_norm.weight"] = torch.randn(own).bfloat16()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (write_gemma3n if case == "gemma3n" else write_gguf)(folder / "model.gguf", config, weights)


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES: make(case)
