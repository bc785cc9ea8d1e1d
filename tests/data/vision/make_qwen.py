"""Makes the tiny Qwen models that see in this folder, and what the transformers library computes of pictures with them.

    pip install torch transformers torchvision safetensors tokenizers pillow
    OMP_NUM_THREADS=1 python make_qwen.py          # all, or: python make_qwen.py qwen3_vl

Each folder is as make_vision.py's are: a random model of the library's own class, its processor, and in `golden.json` and
`golden.safetensors` conversations and what the processor and the whole class make of them. A row of Qwen3-VL has what its first
layers add behind it.
"""
import json, shutil, sys

import torch, transformers as t
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from make_vision import GREEDY, HERE, texture

CHAT = ("{% for message in messages %}<|im_start|>{{ message['role'] }}\n{% for part in message['content'] %}{% if part['type'] == 'image' %}"
        "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
TEXT = dict(hidden_size=64, intermediate_size=96, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=1024)
BOUNDS = dict(min_pixels=600, max_pixels=9000)
CASES = {
    "qwen2_vl": (t.Qwen2VLConfig, t.Qwen2VLForConditionalGeneration, dict(num_hidden_layers=2, rope_parameters={"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 6, 6]}),
                 dict(depth=2, embed_dim=48, hidden_size=64, num_heads=3, mlp_ratio=2, patch_size=8), dict(patch_size=8, **BOUNDS), torch.bfloat16),
    # Windows of two by two rows, and one layer that sees everything.
    "qwen2_5_vl": (t.Qwen2_5_VLConfig, t.Qwen2_5_VLForConditionalGeneration, dict(num_hidden_layers=2, rope_parameters={"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 6, 6]}),
                   dict(depth=3, hidden_size=48, out_hidden_size=64, intermediate_size=80, num_heads=3, patch_size=8, window_size=32, fullatt_block_indexes=[1]),
                   dict(patch_size=8, **BOUNDS), torch.bfloat16),
    "qwen3_vl": (t.Qwen3VLConfig, t.Qwen3VLForConditionalGeneration, dict(num_hidden_layers=3, head_dim=32, rope_parameters={"rope_type": "default", "rope_theta": 1e4, "mrope_section": [6, 5, 5], "mrope_interleaved": True}),
                 dict(depth=3, hidden_size=48, out_hidden_size=64, intermediate_size=80, num_heads=3, patch_size=8, num_position_embeddings=36, deepstack_visual_indexes=[0, 1]),
                 dict(patch_size=8, size=dict(shortest_edge=600, longest_edge=9000), image_mean=[0.5] * 3, image_std=[0.5] * 3), torch.float16),
}
# Texts, and pictures of so many pixels.
TALKS = [
    [("user", [(64, 64), "What is this?"])],
    [("user", ["Look: ", (150, 90), " and ", (33, 120), "\nwhich is <|image_pad|> larger?"])],
    [("system", ["Be brief."]), ("user", [(100, 7), "Well?"]), ("assistant", ["A line."]), ("user", ["And now?", (20, 90)])],
]


def tokenizer():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {letter: index for index, letter in enumerate(alphabet)}
    merges = [("Ġ", "i"), ("i", "s"), ("t", "h"), ("Ċ", "Ċ"), ("Ġ", "t")]
    for a, b in merges: words[a + b] = len(words)
    made = Tokenizer(models.BPE(vocab=words, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    return t.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=CHAT)


def rows_of(model, inputs):
    found = model.model.get_image_features(inputs["pixel_values"], inputs["image_grid_thw"])
    whole = lambda rows: torch.cat(list(rows)) if isinstance(rows, (list, tuple)) else rows
    return torch.cat([whole(found.pooler_output), *map(whole, getattr(found, "deepstack_features", None) or [])], dim=1).float()


def drawn(case, seed, words, image):
    kind, model_class, text, tower, _, dtype = CASES[case]
    torch.manual_seed(seed)
    pad = words.convert_tokens_to_ids("<|image_pad|>")
    ids = dict(eos_token_id=words.eos_token_id, pad_token_id=words.pad_token_id, bos_token_id=None)
    config = kind(text_config=dict(TEXT, vocab_size=len(words), **text, **ids), vision_config=dict(tower), tie_word_embeddings=case != "qwen2_vl", image_token_id=pad,
                  video_token_id=words.convert_tokens_to_ids("<|video_pad|>"), vision_start_token_id=words.convert_tokens_to_ids("<|vision_start|>"), vision_end_token_id=words.convert_tokens_to_ids("<|vision_end|>"))
    config._attn_implementation = "eager"
    model = model_class(config).float().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            x = torch.randn(p.shape)
            if "norm" in name or "ln_q" in name: x = 0.2 * x + (0 if name.endswith("bias") else 1)
            elif name.endswith("bias"): x = 0.2 * x
            elif "embed_tokens" in name: x = 0.16 * x
            elif "patch_embed" in name: x = 0.06 * x
            elif "pos_embed" in name: x = 0.3 * x
            elif "merger" in name: x = (0.08 if "fc1" in name or "mlp.0" in name else 0.03) * x
            else: x = 0.2 * x
            p.copy_(x.to(dtype).float())
        found, margin = [], 1e9
        for talk in TALKS:
            pictures = [texture(*part) for _, parts in talk for part in parts if not isinstance(part, str)]
            seen = image(pictures, return_tensors="pt")
            counts = iter((seen["image_grid_thw"].prod(1) // 4).tolist())
            # What a user writes is text, so it must not be a placeholder: a letter of it is put in afterwards.
            messages = [{"role": role, "content": [{"type": "text", "text": part.replace("<|image_pad|>", "\x01")} if isinstance(part, str) else {"type": "image"} for part in parts]} for role, parts in talk]
            plain = words.encode(words.apply_chat_template(messages, add_generation_prompt=True, tokenize=False), add_special_tokens=False)
            one = words.encode("\x01", add_special_tokens=False)
            spelled = [piece for letter in "<|image_pad|>" for piece in words.encode(letter, add_special_tokens=False)]
            tokens = []
            for token in plain: tokens += [pad] * next(counts) if token == pad else spelled if [token] == one else [token]
            prompt = torch.tensor([tokens])
            all_tokens = prompt
            def run(tokens): return model(input_ids=tokens, use_cache=False, mm_token_type_ids=(tokens == pad).int(), **seen).logits[0].float()
            for _ in range(GREEDY):
                best = run(all_tokens)[-1].topk(2)
                margin = min(margin, float(best.values[0] - best.values[1]))
                # The class takes a placeholder that is drawn for a picture.
                if int(best.indices[0]) in (pad, config.video_token_id): return None
                all_tokens = torch.cat([all_tokens, best.indices[:1].view(1, 1)], dim=1)
            found.append((tokens, all_tokens[0, len(tokens):].tolist(), run(all_tokens[:, :-1])[len(tokens) - 1:], rows_of(model, seen)))
    return model, found, margin / float(found[0][2].max() - found[0][2].min())


def make(case):
    _, _, _, _, settings, dtype = CASES[case]
    words, image = tokenizer(), Qwen2VLImageProcessorPil(**settings)
    told = lambda drawn: min(min(len(set(found[1])), 8) for found in drawn[1]) * all(words.eos_token_id not in found[1] for found in drawn[1])
    model, found, margin = max(filter(None, (drawn(case, seed, words, image) for seed in range(12))), key=lambda drawn: (told(drawn), drawn[2]))
    folder = HERE / case
    shutil.rmtree(folder, ignore_errors=True); folder.mkdir()
    model.to(dtype).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    words.save_pretrained(folder)
    # As the published models have it.
    own = dict(image_processor_type="Qwen2VLImageProcessor" + "Fast" * (case == "qwen3_vl"), temporal_patch_size=2, merge_size=2, **settings)
    (folder / "preprocessor_config.json").write_text(json.dumps(own, indent=1) + "\n")
    talks = [{"messages": [{"role": role, "parts": parts} for role, parts in talk], "tokens": one[0], "greedy": one[1]} for talk, one in zip(TALKS, found)]
    (folder / "golden.json").write_text(json.dumps(talks) + "\n")
    save_file({f"{kind}.{index}": one[place].contiguous() for index, one in enumerate(found) for kind, place in (("logits", 2), ("rows", 3))}, folder / "golden.safetensors")
    print(case, "margin", round(margin, 5), [len(set(one[1])) for one in found], [len(one[0]) for one in found], "different", found[0][1][:6], found[1][1][:6])


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES: make(case)
