"""Makes the tiny models that see in this folder, and what the transformers library computes of pictures with them.

    pip install torch transformers safetensors tokenizers pillow
    OMP_NUM_THREADS=1 python make_vision.py          # all, or: python make_vision.py smolvlm

Each folder has a random model of the library's own class as the library saves it, and its processor. `golden.json` lists
conversations with pictures (of so many pixels; `texture` draws them) and what the processor and the whole class make of them:
the prompt's `tokens`, and the 32 `greedy` tokens after it. `golden.safetensors` has, by the conversation's number, the `logits`
from the prompt's last token on, and the `rows` that take the pictures' place.
"""
import json, shutil, sys
from pathlib import Path

import numpy as np, torch, transformers as t
from PIL import Image
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor

HERE = Path(__file__).parent
GREEDY = 32
CHAT = ("<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}{% if message['content'][0]['type'] == 'image' %}{{':'}}"
        "{% else %}{{': '}}{% endif %}{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
        "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
        "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<end_of_utterance>", "<fake_token_around_image>", "<image>", "<global-img>"]
SPECIAL += [f"<row_{row}_col_{col}>" for row in range(1, 7) for col in range(1, 7)]
TEXT = dict(model_type="llama", hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=1024,
            rope_parameters={"rope_type": "default", "rope_theta": 1e4})
CASES = {
    "smolvlm": (t.SmolVLMConfig, t.SmolVLMForConditionalGeneration, "SmolVLMImageProcessor", dict(hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=3, image_size=64, patch_size=16),
                dict(max_image_size={"longest_edge": 64}, size={"longest_edge": 192}), True, torch.bfloat16),
    # Heads of 72, and frames with fewer patches than positions were learned of.
    "idefics3": (t.Idefics3Config, t.Idefics3ForConditionalGeneration, "Idefics3ImageProcessor", dict(hidden_size=144, intermediate_size=80, num_hidden_layers=2, num_attention_heads=2, image_size=70, patch_size=14),
                 dict(max_image_size={"longest_edge": 56}, size={"longest_edge": 112}, resample=3, image_mean=[0.48, 0.46, 0.41], image_std=[0.27, 0.26, 0.28]), False, torch.float16),
}
# Texts, and pictures of so many pixels.
TALKS = [
    [("user", [(64, 64), "What is this?"])],
    [("user", ["Look: ", (150, 90), " and ", (33, 120), "\nwhich is <image> larger?"])],
    [("system", ["Be brief."]), ("user", [(100, 7), "Well?"]), ("assistant", ["A line."]), ("user", ["And now?", (20, 90)])],
]


def texture(width, height):
    y, x = np.mgrid[0:height, 0:width].astype(np.int64)
    planes = []
    for c in range(3):
        noise = (x * 7919 + y * 104729 + c * 1299709) % 31
        edge = np.where((x // 7 + y // 5 + c) % 2 == 0, 60, 0)
        planes.append(np.clip((x * (3 + c) + y * (5 - c)) % 256 // 2 + edge + noise, 0, 255))
    return Image.fromarray(np.stack(planes, -1).astype(np.uint8))


def tokenizer():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {letter: index for index, letter in enumerate(alphabet)}
    merges = [("Ġ", "i"), ("i", "s"), ("t", "h"), ("Ċ", "Ċ"), ("Ġ", "t")]
    for a, b in merges: words[a + b] = len(words)
    made = Tokenizer(models.BPE(vocab=words, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    return t.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end_of_utterance>", bos_token="<|im_start|>", pad_token="<|endoftext|>")


def drawn(case, seed, processor):
    kind, model_class, _, tower, _, tied, dtype = CASES[case]
    torch.manual_seed(seed)
    words = processor.tokenizer
    ids = dict(bos_token_id=words.bos_token_id, eos_token_id=words.eos_token_id, pad_token_id=words.pad_token_id)
    config = kind(text_config=dict(TEXT, vocab_size=len(words), tie_word_embeddings=tied, **ids), vision_config=dict(tower), scale_factor=2, tie_word_embeddings=tied, image_token_id=words.convert_tokens_to_ids("<image>"))
    config._attn_implementation = "eager"
    model = model_class(config).float().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            x = torch.randn(p.shape)
            if "norm" in name: x = 0.2 * x + (0 if name.endswith("bias") else 1)
            elif name.endswith("bias"): x = 0.2 * x
            elif "embed_tokens" in name: x = 0.16 * x
            elif "patch_embedding" in name: x = 0.06 * x
            elif "position_embedding" in name: x = 0.3 * x
            elif "modality_projection" in name: x = 0.03 * x
            else: x = 0.2 * x
            p.copy_(x.to(dtype).float())
        found, margin = [], 1e9
        for talk in TALKS:
            pictures = [texture(*part) for _, parts in talk for part in parts if not isinstance(part, str)]
            # What a user writes is text, so it must not be a placeholder: a letter of it is put in afterwards.
            messages = [{"role": role, "content": [{"type": "text", "text": part.replace("<image>", "\x01")} if isinstance(part, str) else {"type": "image"} for part in parts]} for role, parts in talk]
            text = processor.apply_chat_template(messages, add_generation_prompt=True)
            inputs = processor(text=text, images=[pictures], return_tensors="pt")
            one = words.encode("\x01", add_special_tokens=False)
            spelled = [piece for letter in "<image>" for piece in words.encode(letter, add_special_tokens=False)]
            tokens = []
            for token in inputs["input_ids"][0].tolist(): tokens += spelled if [token] == one else [token]
            prompt = torch.tensor([tokens])
            rows = model.model.get_image_features(inputs["pixel_values"], inputs["pixel_attention_mask"])
            rows = getattr(rows, "pooler_output", rows)
            more = dict(pixel_values=inputs["pixel_values"], pixel_attention_mask=inputs["pixel_attention_mask"])
            all_tokens = prompt
            for _ in range(GREEDY):
                best = model(input_ids=all_tokens, use_cache=False, **more).logits[0, -1].topk(2)
                margin = min(margin, float(best.values[0] - best.values[1]))
                # The class takes a placeholder that is drawn for a picture.
                if int(best.indices[0]) == config.image_token_id: return None
                all_tokens = torch.cat([all_tokens, best.indices[:1].view(1, 1)], dim=1)
            logits = model(input_ids=all_tokens[:, :-1], use_cache=False, **more).logits[0, prompt.shape[1] - 1:].float()
            found.append((tokens, all_tokens[0, prompt.shape[1]:].tolist(), logits, torch.cat(list(rows)).reshape(-1, 64).float()))
    return model, found, margin / float(found[0][2].max() - found[0][2].min())


def make(case):
    _, model_class, image_class, _, settings, _, dtype = CASES[case]
    settings = dict(do_image_splitting=True, **settings)
    processor = Idefics3Processor(Idefics3ImageProcessorPil(**settings), tokenizer(), image_seq_len=4, chat_template=CHAT)
    end = processor.tokenizer.eos_token_id
    told = lambda drawn: min(min(len(set(found[1])), 8) for found in drawn[1]) * all(end not in found[1] for found in drawn[1])
    model, found, margin = max(filter(None, (drawn(case, seed, processor) for seed in range(40))), key=lambda drawn: (told(drawn), drawn[2]))
    folder = HERE / case
    shutil.rmtree(folder, ignore_errors=True); folder.mkdir()
    model.to(dtype).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    processor.save_pretrained(folder)
    if case == "smolvlm":
        # As it was saved before one file had all of a processor's settings.
        (folder / "processor_config.json").write_text('{"image_seq_len": 4, "processor_class": "SmolVLMProcessor"}\n')
        (folder / "preprocessor_config.json").write_text(json.dumps(dict(image_processor_type=image_class, do_convert_rgb=True, do_pad=True, do_rescale=True, do_normalize=True, do_resize=True, resample=1, image_mean=[0.5] * 3, image_std=[0.5] * 3, rescale_factor=1 / 255, **settings), indent=1) + "\n")
    talks = [{"messages": [{"role": role, "parts": parts} for role, parts in talk], "tokens": one[0], "greedy": one[1]} for talk, one in zip(TALKS, found)]
    (folder / "golden.json").write_text(json.dumps(talks) + "\n")
    save_file({f"{kind}.{index}": one[place].contiguous() for index, one in enumerate(found) for kind, place in (("logits", 2), ("rows", 3))}, folder / "golden.safetensors")
    print(case, "margin", round(margin, 5), [len(set(one[1])) for one in found], [len(one[0]) for one in found], "different", found[0][1][:6], found[1][1][:6])


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES: make(case)
