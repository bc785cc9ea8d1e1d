"""Makes encoders as transformers 5 saves its own classes, names of tensors and settings both, and what they compute.

    pip install torch transformers safetensors gguf
    python make_native.py

Each native-* folder is a random checkpoint of one or two layers that `save_pretrained` has written, with rotary bases that are nobody's
default, and `golden.safetensors`: `tokens` of two texts, one longer than any window, and the `hidden` states of each in float32. The
tokenizer is tests/data/tiny/llama3's. Of two there is a `model.gguf` too, with the keys and names of llama.cpp's converter (its classes
ModernBertModel and EmbeddingGemma).
"""
import shutil
from pathlib import Path

import gguf, torch
from safetensors.torch import save_file
from transformers import AutoModel, CONFIG_MAPPING

HERE = Path(__file__).parent
TEXTS = [[0, 77, 3, 150, 42, 9, 9, 2], [0] + [(7 * i) % 150 + 5 for i in range(30)] + [2]]
COMMON = dict(vocab_size=160, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, max_position_embeddings=64,
              pad_token_id=1, bos_token_id=0, eos_token_id=2, attn_implementation="eager")
ROPE = lambda base: {"rope_type": "default", "rope_theta": base}
KINDS = ["full_attention", "sliding_attention"]
CASES = {
    "gte": dict(rope_parameters=ROPE(3000.0)),
    "nomic_bert": dict(head_dim=8, rope_parameters=ROPE(500.0)),
    "modernbert": dict(cls_token_id=0, sep_token_id=2, local_attention=8, layer_types=KINDS,
                       rope_parameters={"full_attention": ROPE(7000.0), "sliding_attention": ROPE(300.0)}),
    "gemma3_text": dict(head_dim=16, num_key_value_heads=2, query_pre_attn_scalar=16, sliding_window=8, layer_types=KINDS[::-1],
                        use_bidirectional_attention=True,
                        rope_parameters={"full_attention": ROPE(7000.0), "sliding_attention": ROPE(300.0)}),
    "roberta": dict(),
}

ARCHITECTURES = {"modernbert": gguf.MODEL_ARCH.MODERN_BERT, "gemma3_text": gguf.MODEL_ARCH.GEMMA_EMBEDDING}


def twin(kind, folder, model):
    c, arch = model.config, ARCHITECTURES[kind]
    w = gguf.GGUFWriter(folder / "model.gguf", gguf.MODEL_ARCH_NAMES[arch])
    w.add_name(kind); w.add_block_count(c.num_hidden_layers); w.add_context_length(c.max_position_embeddings)
    w.add_embedding_length(c.hidden_size); w.add_feed_forward_length(c.intermediate_size); w.add_head_count(c.num_attention_heads)
    w.add_rope_freq_base(c.rope_parameters["full_attention"]["rope_theta"])
    w.add_rope_freq_base_swa(c.rope_parameters["sliding_attention"]["rope_theta"])
    w.add_pooling_type(gguf.PoolingType.MEAN)
    if kind == "modernbert":
        w.add_causal_attention(False); w.add_layer_norm_eps(c.norm_eps); w.add_sliding_window(c.local_attention)
        w.add_rope_scaling_type(gguf.RopeScalingType.NONE); w.add_vocab_size(c.vocab_size); w.add_string("modern-bert.hidden_activation", c.hidden_activation)
        w.add_sliding_window_pattern(2)
    else:
        w.add_layer_norm_rms_eps(c.rms_norm_eps); w.add_key_length(c.head_dim); w.add_value_length(c.head_dim)
        w.add_head_count_kv(c.num_key_value_heads); w.add_sliding_window(CASES[kind]["sliding_window"]); w.add_sliding_window_pattern(2)
    w.add_tokenizer_model("gpt2"); w.add_token_list([f"t{i}" for i in range(c.vocab_size)])
    names = gguf.get_tensor_name_map(arch, c.num_hidden_layers)
    for name, p in model.state_dict().items():
        to = names.get_name(name, try_suffixes=(".weight", ".bias")) or names.get_name("model." + name, try_suffixes=(".weight", ".bias"))
        w.add_tensor(to, (p + 1 if kind == "gemma3_text" and name.endswith("norm.weight") else p).contiguous().numpy())
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()


for kind, own in CASES.items():
    torch.manual_seed(sum(map(ord, kind)))
    settings = COMMON | own
    extra = {"add_pooling_layer": False} if kind == "roberta" else {}
    model = AutoModel.from_config(CONFIG_MAPPING[kind](**settings), **extra).float().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            near_one = "norm" in name.lower() and name.endswith("weight") and kind != "gemma3_text" or "_ln" in name and name.endswith("weight")
            p.copy_((torch.randn_like(p) * 64).round().clamp(-250, 250) / 256 + (1 if near_one else 0))
        hidden = [model(input_ids=torch.tensor([text])).last_hidden_state[0] for text in TEXTS]
    folder = HERE / f"native-{kind}"
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(HERE.parent / "tiny/llama3" / file, folder / file)
    if kind in ARCHITECTURES: twin(kind, folder, model)
    golden = {f"tokens.{i}": torch.tensor(text, dtype=torch.int32) for i, text in enumerate(TEXTS)} | {f"hidden.{i}": h for i, h in enumerate(hidden)}
    save_file(golden, folder / "golden.safetensors")
    print(kind, sum(file.stat().st_size for file in folder.iterdir()), [round(h.abs().max().item(), 2) for h in hidden])
