"""Makes the golden pictures of crates/media: files of every kind as Pillow reads them, resized by Pillow, and what the families'
processors of transformers 5.23 make of them. Run from the repository's root: `python crates/media/testdata/make.py`."""

import hashlib
import io
import json
import pathlib
import random

import numpy as np
from PIL import Image, ImageOps
from transformers.image_processing_utils import select_best_resolution
from transformers.image_transforms import convert_to_rgb
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.idefics2.image_processing_pil_idefics2 import Idefics2ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

HERE = pathlib.Path(__file__).parent


def texture(width, height, channels=3):
    """The same numbers as `texture` in src/tests.rs makes: smooth, with edges and a little noise."""
    y, x = np.mgrid[0:height, 0:width].astype(np.int64)
    planes = []
    for c in range(channels):
        smooth = (x * (3 + c) + y * (5 - c)) % 256
        edge = np.where((x // 7 + y // 5 + c) % 2 == 0, 60, 0)
        noise = (x * 7919 + y * 104729 + c * 1299709) % 31
        planes.append(np.clip(smooth // 2 + edge + noise, 0, 255))
    return np.stack(planes, -1).astype(np.uint8)


def digest(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def save(name, image, **more):
    out = io.BytesIO()
    image.save(out, **more)
    (HERE / name).write_bytes(out.getvalue())
    again = ImageOps.exif_transpose(Image.open(io.BytesIO(out.getvalue())))
    again.seek(0) if getattr(again, "n_frames", 1) > 1 else None
    rgb = convert_to_rgb(again, return_numpy=True)
    (HERE / (name + ".rgb")).write_bytes(np.ascontiguousarray(rgb).tobytes())
    return {"name": name, "width": rgb.shape[1], "height": rgb.shape[0]}


def files():
    rgb = Image.fromarray(texture(23, 17))
    rgba = Image.fromarray(texture(23, 17, 4))
    grey = Image.fromarray(texture(23, 17)[..., 0])
    found = [
        save("rgb.png", rgb, format="PNG"),
        save("rgba.png", rgba, format="PNG"),
        save("grey.png", grey, format="PNG"),
        save("grey_alpha.png", rgba.convert("LA"), format="PNG"),
        save("palette.png", rgb.quantize(16), format="PNG"),
        save("palette_clear.png", rgb.quantize(16), format="PNG", transparency=3),
        save("bit.png", grey.convert("1"), format="PNG"),
        save("rgb.jpg", rgb, format="JPEG", quality=90, subsampling=0),
        save("halved.jpg", rgb, format="JPEG", quality=90, subsampling=2),
        save("progressive.jpg", rgb, format="JPEG", quality=90, subsampling=0, progressive=True),
        save("grey.jpg", grey, format="JPEG", quality=90),
        save("cmyk.jpg", rgb.convert("CMYK"), format="JPEG", quality=95, subsampling=0),
        save("lossless.webp", rgb, format="WEBP", lossless=True),
        save("lossless_alpha.webp", rgba, format="WEBP", lossless=True, exact=True),
        save("lossy.webp", rgb, format="WEBP", quality=95),
        save("still.gif", rgb.quantize(16), format="GIF"),
        save("clear.gif", rgb.quantize(16), format="GIF", transparency=3),
        save("moving.gif", rgb.quantize(16), format="GIF", save_all=True, append_images=[grey.convert("P")]),
        save("moving.webp", rgb, format="WEBP", lossless=True, save_all=True, append_images=[grey.convert("RGB")]),
    ]
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        found.append(save(f"turned_{orientation}.png", rgb, format="PNG", exif=exif))
    exif = Image.Exif()
    exif[0x0112] = 6
    found.append(save("turned_6.jpg", rgb, format="JPEG", quality=90, subsampling=0, exif=exif))
    found.append(save("turned_6.webp", rgb, format="WEBP", lossless=True, exif=exif))
    return found


def resizes():
    filters = {"Box": Image.Resampling.BOX, "Bilinear": Image.Resampling.BILINEAR, "Hamming": Image.Resampling.HAMMING,
               "Bicubic": Image.Resampling.BICUBIC, "Lanczos": Image.Resampling.LANCZOS}
    random.seed(5)
    sizes = [(64, 48, 64, 48), (64, 48, 31, 48), (64, 48, 64, 17), (640, 427, 512, 341), (37, 53, 512, 512),
             (1, 1, 9, 7), (300, 2, 64, 64), (2, 300, 17, 1)]
    sizes += [tuple(random.randint(1, 400) for _ in range(4)) for _ in range(12)]
    return [
        {"filter": name, "from": size[:2], "to": size[2:],
         "digest": digest(np.asarray(Image.fromarray(texture(*size[:2])).resize(size[2:], of)))}
        for name, of in filters.items() for size in sizes
    ]


CONFIGS = [
    {"image_processor_type": "Idefics3ImageProcessor", "do_convert_rgb": True, "do_image_splitting": True,
     "do_normalize": True, "do_pad": True, "do_rescale": True, "do_resize": True, "image_mean": [0.5, 0.5, 0.5],
     "image_std": [0.5, 0.5, 0.5], "max_image_size": {"longest_edge": 364}, "resample": 1,
     "rescale_factor": 0.00392156862745098, "size": {"longest_edge": 1456}},
    {"image_processor_type": "SmolVLMImageProcessor", "max_image_size": {"longest_edge": 512},
     "size": {"longest_edge": 2048}},
    {"image_processor_type": "SmolVLMImageProcessorFast", "max_image_size": {"longest_edge": 32},
     "size": {"longest_edge": 96}, "resample": 3, "image_mean": [0.48145466, 0.4578275, 0.40821073],
     "image_std": [0.26862954, 0.26130258, 0.27577711]},
    {"image_processor_type": "Idefics3ImageProcessor", "max_image_size": {"longest_edge": 32},
     "size": {"longest_edge": 32}, "resample": 2, "do_normalize": False},
    {"image_processor_type": "Idefics3ImageProcessor", "max_image_size": {"longest_edge": 48},
     "do_resize": False, "do_image_splitting": True},
    {"image_processor_type": "Idefics3ImageProcessor", "max_image_size": {"longest_edge": 48},
     "size": {"longest_edge": 200}, "do_image_splitting": False},
]


def processors():
    random.seed(6)
    found = []
    for config in CONFIGS:
        small = config["max_image_size"]["longest_edge"] < 100
        sizes = [(64, 64), (100, 7), (7, 100), (33, 32)] + [
            (random.randint(1, 300), random.randint(1, 300)) for _ in range(20 if small else 2)]
        cls = Idefics3ImageProcessorPil if "Idefics3" in config["image_processor_type"] else SmolVLMImageProcessorPil
        own = {key: value for key, value in config.items() if key != "image_processor_type"}
        for width, height in sizes:
            image = Image.fromarray(texture(width, height))
            for detail in ["Own", "Low", "High"]:
                how = dict(own)
                if detail != "Own":
                    how["do_image_splitting"] = detail == "High"
                raw = cls(**{**how, "do_rescale": False, "do_normalize": False})(
                    [[image]], return_row_col_info=True, return_tensors="np")
                made = cls(**how)([[image]], return_tensors="np")["pixel_values"][0].astype(np.float32)
                frames = raw["pixel_values"][0].astype(np.uint8).transpose(0, 2, 3, 1)
                found.append({
                    "config": config, "width": width, "height": height, "detail": detail,
                    "frames": list(frames.shape[:3]), "rows": raw["rows"][0][0], "cols": raw["cols"][0][0],
                    "digest": digest(frames),
                    # The first numbers of the first row, of each colour.
                    "numbers": [[float(n) for n in made[0, c, 0, :4]] for c in range(3)],
                })
    return found


WHOLE_CONFIGS = [
    # As Qwen2-VL's and Qwen2.5-VL's files say it.
    {"image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14,
     "temporal_patch_size": 2, "merge_size": 2, "image_mean": [0.48145466, 0.4578275, 0.40821073],
     "image_std": [0.26862954, 0.26130258, 0.27577711]},
    # As Qwen3-VL's.
    {"image_processor_type": "Qwen2VLImageProcessorFast", "size": {"longest_edge": 16777216, "shortest_edge": 65536},
     "patch_size": 16, "temporal_patch_size": 2, "merge_size": 2, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]},
    {"image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 1024, "max_pixels": 9000, "patch_size": 8, "merge_size": 2},
    {"image_processor_type": "Qwen2VLImageProcessor", "size": {"shortest_edge": 400, "longest_edge": 5000}, "patch_size": 4,
     "merge_size": 3, "resample": 2, "do_normalize": False},
]


def wholes():
    random.seed(7)
    found = []
    for config in WHOLE_CONFIGS:
        sizes = [(64, 64), (100, 7), (7, 100), (33, 32), (42, 70), (14, 15), (1, 3)] + [
            (random.randint(1, 300), random.randint(1, 300)) for _ in range(12)] + [(700, 520)]
        own = {key: value for key, value in config.items() if key != "image_processor_type"}
        for width, height in sizes:
            image = Image.fromarray(texture(width, height))
            for bounds in [{}, {"max_pixels": 4000}, {"min_pixels": 2500, "max_pixels": 20000}]:
                how = dict(own)
                if bounds:
                    size = dict(how.pop("size", {}))
                    least, most = how.pop("min_pixels", size.get("shortest_edge")), how.pop("max_pixels", size.get("longest_edge"))
                    most = bounds.get("max_pixels", most)
                    how["size"] = {"shortest_edge": bounds.get("min_pixels", min(least, most)), "longest_edge": most}
                raw = Qwen2VLImageProcessorPil(**{**how, "do_rescale": False, "do_normalize": False})([image], return_tensors="np")
                made = Qwen2VLImageProcessorPil(**how)([image], return_tensors="np")["pixel_values"].astype(np.float32)
                (_, rows, cols), patch, joined = raw["image_grid_thw"][0].tolist(), config["patch_size"], config["merge_size"]
                pixels = raw["pixel_values"].reshape(rows // joined, cols // joined, joined, joined, 3, 2, patch, patch)[..., 0, :, :]
                pixels = pixels.transpose(0, 2, 5, 1, 3, 6, 4).reshape(rows * patch, cols * patch, 3)
                numbers = made[0].reshape(3, 2, patch, patch)[:, 0, 0, :4]
                found.append({
                    "config": config, "width": width, "height": height, "detail": "Own",
                    "pixels_min": bounds.get("min_pixels"), "pixels_max": bounds.get("max_pixels"),
                    "frames": [1, rows * patch, cols * patch], "rows": 0, "cols": 0, "digest": digest(pixels.astype(np.uint8)),
                    "numbers": [[float(n) for n in row] for row in numbers],
                })
    return found


SQUARE_CONFIGS = [
    (Gemma3ImageProcessorPil, {"image_processor_type": "Gemma3ImageProcessorFast", "size": {"height": 56, "width": 56}, "resample": 2, "do_pan_and_scan": None}),
    (CLIPImageProcessorPil, {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 45}, "crop_size": {"height": 45, "width": 45}, "do_center_crop": True}),
    (LlavaImageProcessorPil, {"image_processor_type": "LlavaImageProcessor", "size": {"shortest_edge": 40}, "crop_size": {"height": 40, "width": 40}, "do_pad": True}),
    (LlavaNextImageProcessorPil, {"image_processor_type": "LlavaNextImageProcessor", "size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32},
                                  "image_grid_pinpoints": [[32, 64], [64, 32], [64, 64], [96, 32], [32, 96], [32, 32]]}),
    (PixtralImageProcessorPil, {"image_processor_type": "PixtralImageProcessor", "size": {"longest_edge": 100}, "patch_size": {"height": 8, "width": 8}}),
    (PixtralImageProcessorPil, {"image_processor_type": "PixtralImageProcessorFast", "size": {"longest_edge": 1540}, "patch_size": 14}),
    (SiglipImageProcessorPil, {"image_processor_type": "SiglipImageProcessor", "size": {"height": 38, "width": 38}}),
    (SiglipImageProcessorPil, {"image_processor_type": "SiglipImageProcessorFast", "size": {"height": 48, "width": 48}, "resample": 2}),
]


def squares():
    """Of LLaVA-NeXT the second frame is the canvas that its squares are of."""
    random.seed(8)
    found = []
    for cls, config in SQUARE_CONFIGS:
        sizes = [(64, 64), (100, 7), (7, 100), (33, 32), (45, 45)] + [(random.randint(1, 300), random.randint(1, 300)) for _ in range(16)]
        own = {key: value for key, value in config.items() if key != "image_processor_type"}
        for width, height in sizes:
            if max(width, height) > 60 * min(width, height): continue
            image = Image.fromarray(texture(width, height))
            raw = cls(**{**own, "do_rescale": False, "do_normalize": False})([image], return_tensors="np")["pixel_values"][0].astype(np.uint8)
            made = cls(**own)([image], return_tensors="np")["pixel_values"][0].astype(np.float32)
            frames = (raw if raw.ndim == 4 else raw[None]).transpose(0, 2, 3, 1)
            first, rows, cols, shown = made if made.ndim == 3 else made[0], 0, 0, [frames[0]]
            if cls is LlavaNextImageProcessorPil:
                best = select_best_resolution((height, width), config["image_grid_pinpoints"])
                rows, cols = best[0] // 32, best[1] // 32
                shown.append(frames[1:].reshape(rows, cols, 32, 32, 3).transpose(0, 2, 1, 3, 4).reshape(best[0], best[1], 3))
            found.append({
                "config": config, "width": width, "height": height, "detail": "Own", "frames": [len(shown), *frames.shape[1:3]], "canvas": [rows * 32, cols * 32],
                "rows": rows, "cols": cols, "digest": digest(np.concatenate([frame.reshape(-1) for frame in shown])),
                "numbers": [[float(n) for n in first[c, 0, :4]] for c in range(3)],
            })
    return found


QUARTER_CONFIGS = [
    {"image_processor_type": "Idefics2ImageProcessor", "size": {"shortest_edge": 40, "longest_edge": 96}, "do_image_splitting": True},
    {"image_processor_type": "Idefics2ImageProcessorFast"},
]


def quarters():
    """Each frame has a size of its own."""
    random.seed(9)
    found = []
    for config in QUARTER_CONFIGS:
        own = {key: value for key, value in config.items() if key != "image_processor_type"}
        for width, height in [(64, 64), (100, 7), (7, 100), (33, 32), (3, 2)] + [(random.randint(2, 300), random.randint(2, 300)) for _ in range(8)]:
            image = Image.fromarray(texture(width, height))
            for detail in ["Own", "Low", "High"]:
                how = dict(own, do_pad=False)
                if detail != "Own": how["do_image_splitting"] = detail == "High"
                raw = Idefics2ImageProcessorPil(**how, do_rescale=False, do_normalize=False)([[image]])["pixel_values"][0]
                made = Idefics2ImageProcessorPil(**how)([[image]])["pixel_values"][0]
                frames = [np.asarray(frame).astype(np.uint8).transpose(1, 2, 0) for frame in raw]
                parts = 2 if len(frames) > 1 else 0
                found.append({
                    "config": config, "width": width, "height": height, "detail": detail, "frames": [len(frames)], "sides": [list(frame.shape[:2]) for frame in frames],
                    "rows": parts, "cols": parts, "digest": digest(np.concatenate([frame.reshape(-1) for frame in frames])),
                    "numbers": [[float(n) for n in np.asarray(made[0], np.float32)[c, 0, :4]] for c in range(3)],
                })
    return found


(HERE / "golden.json").write_text(json.dumps(
    {"files": files(), "resizes": resizes(), "processors": processors() + wholes() + squares() + quarters()}, indent=None, separators=(",", ":")) + "\n")
