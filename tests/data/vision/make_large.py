"""Counts the tokens that the transformers library makes of a chat with a photograph of 12 megapixels, for each tiny model that sees.

    pip install torch transformers torchvision pillow
    python make_large.py                 # writes large.json and large.jpg

`large.jpg` is a baseline JPEG of 4000 x 3000 pixels, as phones write them, and as small as its few rectangles make it. `large.json` has
for each folder the tokens of a chat that asks one question about it: `input_ids` of the model's own processor, with a chat template
that ends in a generation prompt. What follows from the processor's settings and the picture's size alone needs no pixels of a PNG.
"""
import json, sys
from pathlib import Path

from PIL import Image, ImageDraw
from transformers import AutoProcessor

HERE = Path(__file__).parent
QUESTION = "What is this?"
SIZE = (4000, 3000)


def picture():
    made = Image.new("RGB", SIZE, (120, 150, 90))
    draw = ImageDraw.Draw(made)
    draw.rectangle((640, 480, 1280, 1440), fill=(200, 40, 40))
    draw.rectangle((2240, 1600, 3520, 2400), fill=(30, 60, 190))
    made.save(HERE / "large.jpg", quality=75, subsampling="4:2:0", optimize=True)
    return Image.open(HERE / "large.jpg").convert("RGB")


def main():
    image, counts = picture(), {}
    for folder in sorted(path for path in HERE.iterdir() if (path / "golden.json").exists()):
        try:
            processor = AutoProcessor.from_pretrained(folder)
            messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": QUESTION}]}]
            text = processor.apply_chat_template(messages, add_generation_prompt=True)
            made = processor(text=[text], images=[[image]], return_tensors="pt", add_special_tokens=False)
            counts[folder.name] = made["input_ids"].shape[1]
        except Exception as error:
            print(f"{folder.name}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
    (HERE / "large.json").write_text(json.dumps(counts, indent=1) + "\n")
    print(counts)


if __name__ == "__main__":
    main()
