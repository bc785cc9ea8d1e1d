"""Makes the tiny Gemma 3, LLaVA, LLaVA-NeXT, Pixtral and Mistral 3 models that see in this folder, and what the transformers library
computes of pictures with them.

    pip install torch transformers torchvision safetensors tokenizers pillow
    OMP_NUM_THREADS=1 python make_llava.py          # all, or: python make_llava.py gemma3

Each folder is as make_vision.py's are: a random model of the library's own class, its processor, and in `golden.json` and
`golden.safetensors` conversations and what the processor and the whole class make of them. Of Pixtral and Mistral 3 the rows are those
of pictures alone, without the tokens at the ends of lines.
"""
import json, shutil, sys

import torch, transformers as t
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

from make_vision import GREEDY, HERE, texture

ENDS = ["<pad>", "</s>", "<s>"]
GEMMA = ("{{ bos_token }}{% for message in messages %}<start_of_turn>{{ 'model' if message['role'] == 'assistant' else message['role'] }}\n"
         "{% for part in message['content'] %}{% if part['type'] == 'image' %}<start_of_image>{% else %}{{ part['text'] | trim }}{% endif %}{% endfor %}"
         "<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}")
VICUNA = ("{% for message in messages %}{{ message['role'] | upper }}: {% for part in message['content'] %}{% if part['type'] == 'image' %}<image>\n"
          "{% else %}{{ part['text'] }} {% endif %}{% endfor %}{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}")
MISTRAL = ("{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}[INST]{% endif %}{% for part in message['content'] %}"
           "{% if part['type'] == 'image' %}[IMG]{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% if message['role'] == 'user' %}[/INST]"
           "{% elif message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}")
PLAIN = {"rope_type": "default", "rope_theta": 1e4}
TEXT = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=1024, head_dim=32)
MISTRAL_TEXT = dict(TEXT, model_type="mistral", sliding_window=None, rope_parameters=PLAIN)
CLIP = dict(model_type="clip_vision_model", hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=3, patch_size=8, projection_dim=16)
PIXTRAL = dict(model_type="pixtral", hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=3, patch_size=8, image_size=96, rope_parameters={"rope_theta": 1e4, "rope_type": "axial"})
CASES = {
    # Pictures have more rows than a window.
    "gemma3": dict(seeds=80, config=t.Gemma3Config, model=t.Gemma3ForConditionalGeneration, dtype=torch.bfloat16, template=GEMMA, placeholder="<start_of_image>", token="<image_soft_token>", extra=["<start_of_image>", "<end_of_image>", "<start_of_turn>", "<end_of_turn>"],
                   named=dict(boi_token="<start_of_image>", eoi_token="<end_of_image>", image_token="<image_soft_token>"), tied=True,
                   text=dict(TEXT, query_pre_attn_scalar=32, sliding_window=12, layer_types=["sliding_attention", "full_attention"],
                             rope_parameters={"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}, "sliding_attention": PLAIN}),
                   tower=dict(hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=3, image_size=64, patch_size=8, vision_use_head=False), more=dict(mm_tokens_per_image=16),
                   image=lambda: Gemma3ImageProcessorPil(size=dict(height=64, width=64)), processor=t.Gemma3Processor, settings=dict(image_seq_length=16)),
    "llava": dict(config=t.LlavaConfig, model=t.LlavaForConditionalGeneration, dtype=torch.float16, template=VICUNA, placeholder="<image>", token="<image>", extra=[], named={}, tied=False,
                  text={key: value for key, value in dict(TEXT, model_type="llama", rope_parameters=PLAIN).items() if key != "head_dim"}, tower=dict(CLIP, image_size=40), more={},
                  image=lambda: CLIPImageProcessorPil(size=dict(shortest_edge=40), crop_size=dict(height=40, width=40)), processor=t.LlavaProcessor,
                  settings=dict(patch_size=8, vision_feature_select_strategy="default", num_additional_image_tokens=1)),
    "llava_next": dict(seeds=80, config=t.LlavaNextConfig, model=t.LlavaNextForConditionalGeneration, dtype=torch.float16, template=VICUNA, placeholder="<image>", token="<image>", extra=[], named={}, tied=False,
                       text=MISTRAL_TEXT, tower=dict(CLIP, image_size=32), more=dict(image_grid_pinpoints=[[32, 64], [64, 32], [64, 64], [96, 32], [32, 96]]),
                       image=lambda: LlavaNextImageProcessorPil(size=dict(shortest_edge=32), crop_size=dict(height=32, width=32), image_grid_pinpoints=[[32, 64], [64, 32], [64, 64], [96, 32], [32, 96]]),
                       processor=t.LlavaNextProcessor, settings=dict(patch_size=8, vision_feature_select_strategy="default", num_additional_image_tokens=1)),
    "pixtral": dict(config=t.LlavaConfig, model=t.LlavaForConditionalGeneration, dtype=torch.bfloat16, template=MISTRAL, placeholder="[IMG]", token="[IMG]", extra=["[IMG_BREAK]", "[IMG_END]", "[INST]", "[/INST]"], named={}, tied=False,
                    text=MISTRAL_TEXT, tower=PIXTRAL, more=dict(vision_feature_layer=-1, vision_feature_select_strategy="full"),
                    image=lambda: PixtralImageProcessorPil(size=dict(longest_edge=72), patch_size=dict(height=8, width=8)), processor=t.PixtralProcessor, settings=dict(patch_size=8)),
    "mistral3": dict(seeds=80, config=t.Mistral3Config, model=t.Mistral3ForConditionalGeneration, dtype=torch.bfloat16, template=MISTRAL, placeholder="[IMG]", token="[IMG]", extra=["[IMG_BREAK]", "[IMG_END]", "[INST]", "[/INST]"], named={}, tied=False,
                     text=dict(MISTRAL_TEXT, rms_norm_eps=1e-3), tower=dict(PIXTRAL, hidden_act="silu"), more=dict(spatial_merge_size=2, vision_feature_layer=-1),
                     image=lambda: PixtralImageProcessorPil(size=dict(longest_edge=96), patch_size=dict(height=8, width=8)), processor=t.PixtralProcessor, settings=dict(patch_size=8, spatial_merge_size=2)),
}
# Texts, and pictures of so many pixels. A placeholder that a user spells is text.
TALKS = [
    [("user", [(64, 64), "What is this?"])],
    [("user", ["Look: ", (150, 90), " and ", (33, 120), "\nwhich is # larger?"])],
    [("system", ["Be brief."]), ("user", [(100, 7), "Well?"]), ("assistant", ["A line."]), ("user", ["And now?", (20, 90)])],
]


def tokenizer(case):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {letter: index for index, letter in enumerate(alphabet)}
    merges = [("Ġ", "i"), ("i", "s"), ("t", "h"), ("Ċ", "Ċ"), ("Ġ", "t"), ("ĊĊ", "Ċ")]
    for a, b in merges: words[a + b] = len(words)
    made = Tokenizer(models.BPE(vocab=words, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in ENDS + [case["token"]] + case["extra"]])
    return t.PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="<pad>", chat_template=case["template"], extra_special_tokens=case["named"])


def drawn(case, seed, processor):
    words = processor.tokenizer
    torch.manual_seed(seed)
    image_token = words.convert_tokens_to_ids(case["token"])
    ids = dict(bos_token_id=words.bos_token_id, eos_token_id=words.eos_token_id, pad_token_id=words.pad_token_id)
    config = case["config"](text_config=dict(case["text"], vocab_size=len(words), tie_word_embeddings=case["tied"], **ids), vision_config=dict(case["tower"]), tie_word_embeddings=case["tied"], image_token_index=image_token, **case["more"])
    if case["named"]: config.boi_token_index, config.eoi_token_index = (words.convert_tokens_to_ids(case["named"][key]) for key in ("boi_token", "eoi_token"))
    config._attn_implementation = "eager"
    model = case["model"](config).float().eval()
    gemma = case["config"] is t.Gemma3Config
    with torch.no_grad():
        for name, p in model.named_parameters():
            x = torch.randn(p.shape)
            from_one = not (gemma and ("language_model" in name or "soft_emb" in name))
            if "norm" in name or "ln_pre" in name: x = 0.2 * x + (1 if from_one and not name.endswith("bias") else 0)
            elif name.endswith("bias"): x = 0.2 * x
            elif "embed_tokens" in name: x = (0.05 if gemma else 0.16) * x
            elif "patch_embedding" in name or "patch_conv" in name: x = 0.06 * x
            elif "position_embedding" in name or "class_embedding" in name: x = 0.3 * x
            elif "input_projection" in name: x = 0.2 * x
            elif "linear_1" in name or "merging" in name: x = 0.1 * x
            elif "linear_2" in name: x = 0.06 * x
            else: x = 0.2 * x
            p.copy_(x.to(case["dtype"]).float())
        found, margin = [], 1e9
        for talk in TALKS:
            pictures = [texture(*part) for _, parts in talk for part in parts if not isinstance(part, str)]
            # What a user writes is text, so a placeholder in it is put in afterwards, letter by letter.
            messages = [{"role": role, "content": [{"type": "text", "text": part.replace("#", "\x01")} if isinstance(part, str) else {"type": "image"} for part in parts]} for role, parts in talk]
            text = processor.apply_chat_template(messages, add_generation_prompt=True)
            inputs = processor(text=text, images=[pictures] if gemma else pictures, return_tensors="pt", add_special_tokens=False)
            one = words.encode("\x01", add_special_tokens=False)
            spelled = [piece for letter in case["placeholder"] for piece in words.encode(letter, add_special_tokens=False)]
            tokens = []
            for token in inputs["input_ids"][0].tolist(): tokens += spelled if [token] == one else [token]
            prompt = torch.tensor([tokens])
            more = {key: inputs[key] for key in ("pixel_values", "image_sizes") if key in inputs}
            rows = model.model.get_image_features(**more)
            rows = getattr(rows, "pooler_output", rows)
            rows = torch.cat([one.reshape(-1, 64) for one in rows])
            all_tokens = prompt
            def run(tokens):
                types = dict(token_type_ids=(tokens == image_token).long()) if gemma else {}
                return model(input_ids=tokens, use_cache=False, **more, **types).logits[0]
            for _ in range(GREEDY):
                best = run(all_tokens)[-1].topk(2)
                margin = min(margin, float(best.values[0] - best.values[1]))
                # The class takes a placeholder that is drawn for a picture.
                if int(best.indices[0]) == image_token: return None
                all_tokens = torch.cat([all_tokens, best.indices[:1].view(1, 1)], dim=1)
            logits = run(all_tokens[:, :-1])[prompt.shape[1] - 1:].float()
            found.append((tokens, all_tokens[0, prompt.shape[1]:].tolist(), logits, rows.float()))
    return model, found, margin / float(found[0][2].max() - found[0][2].min())


def make(name):
    case = CASES[name]
    processor = case["processor"](image_processor=case["image"](), tokenizer=tokenizer(case), chat_template=case["template"], **case["settings"])
    end = processor.tokenizer.eos_token_id
    told = lambda drawn: min(min(len(set(found[1])), 8) for found in drawn[1]) * all(end not in found[1] for found in drawn[1])
    model, found, margin = max(filter(None, (drawn(case, seed, processor) for seed in range(case.get("seeds", 16)))), key=lambda drawn: (told(drawn), drawn[2]))
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True); folder.mkdir()
    model.to(case["dtype"]).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    if name == "llava_next":
        # As it was saved before the library's fifth version.
        weights = load_file(folder / "model.safetensors")
        save_file({key.replace("vision_tower.", "vision_tower.vision_model."): tensor for key, tensor in weights.items()}, folder / "model.safetensors", metadata={"format": "pt"})
    processor.save_pretrained(folder)
    talks = [{"messages": [{"role": role, "parts": [part.replace("#", case["placeholder"]) if isinstance(part, str) else part for part in parts]} for role, parts in talk], "tokens": one[0], "greedy": one[1]} for talk, one in zip(TALKS, found)]
    (folder / "golden.json").write_text(json.dumps(talks) + "\n")
    save_file({f"{kind}.{index}": one[place].contiguous() for index, one in enumerate(found) for kind, place in (("logits", 2), ("rows", 3))}, folder / "golden.safetensors")
    print(name, "margin", round(margin, 5), [len(set(one[1])) for one in found], [len(one[0]) for one in found], [tuple(one[3].shape) for one in found], "range of rows", float(found[0][3].min()), float(found[0][3].max()))


if __name__ == "__main__":
    for name in sys.argv[1:] or CASES: make(name)
