"""Rows of pictures that are so narrow that none of their columns, or none of their lines, is left on a canvas of LLaVA-NeXT:
`narrow.safetensors` beside the tiny model, a tensor for each picture, by its width and height.

    pip install torch transformers safetensors pillow
    python make_narrow.py
"""
from pathlib import Path
import torch, transformers as t
from safetensors.torch import save_file
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
from make_vision import texture

FOLDER = Path(__file__).parent / "llava_next"
PICTURES = [(3, 700), (700, 3), (1, 1500), (1500, 1)]

if __name__ == "__main__":
    model = t.LlavaNextForConditionalGeneration.from_pretrained(FOLDER, dtype=torch.float32).eval()
    processor = LlavaNextImageProcessorPil.from_pretrained(FOLDER)
    rows = {}
    with torch.no_grad():
        for width, height in PICTURES:
            inputs = processor(images=texture(width, height), return_tensors="pt")
            found = model.get_image_features(**inputs).pooler_output
            rows[f"{width}x{height}"] = torch.cat([part.float() for part in found]).contiguous()
            print(width, height, tuple(rows[f"{width}x{height}"].shape))
    save_file(rows, FOLDER / "narrow.safetensors")
