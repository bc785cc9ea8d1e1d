"""JPEG files of real encoders, and what transformers' processors make of their pixels as Pillow decodes them, for each model in this folder.

    pip install transformers pillow numpy imagecodecs; apt-get install libjpeg-turbo-progs imagemagick ffmpeg; npm install sharp
    NODE_PATH=node_modules python make_jpegs.py

`jpegs.bin` has, for each kind of file, the JPEG and then a PNG of its pixels as Pillow decodes and turns them. `jpegs.json` says their
lengths, and for each model the first 8 bytes of the SHA-256 of the frames that the library's processor makes of the pixels, before they are scaled to numbers.
A kind without pixels is one that Pillow refuses, or decodes to a picture of which a part is missing."""

import hashlib
import io
import json
import pathlib
import subprocess
import tempfile

import imagecodecs
import numpy as np
from PIL import Image, ImageOps
from transformers.image_processing_utils import select_best_resolution
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.idefics2.image_processing_pil_idefics2 import Idefics2ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
from transformers.models.mllama.image_processing_pil_mllama import MllamaImageProcessorPil
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

HERE = pathlib.Path(__file__).parent
CLASSES = {cls.__name__.removesuffix("Pil"): cls for cls in [
    CLIPImageProcessorPil, Gemma3ImageProcessorPil, Idefics2ImageProcessorPil, Idefics3ImageProcessorPil, LlavaNextImageProcessorPil,
    MllamaImageProcessorPil, PixtralImageProcessorPil, Qwen2VLImageProcessorPil, SiglipImageProcessorPil, SmolVLMImageProcessorPil]}


def texture(width, height, channels=3):
    """Smooth, with edges and noise, so that all coefficients are used."""
    y, x = np.mgrid[0:height, 0:width].astype(np.int64)
    planes = []
    for c in range(channels):
        smooth = (x * (3 + c) + y * (5 - c)) % 256
        edge = np.where((x // 7 + y // 5 + c) % 2 == 0, 60, 0)
        noise = (x * 7919 + y * 104729 + c * 1299709) % 31
        planes.append(np.clip(smooth // 2 + edge + noise, 0, 255))
    return np.stack(planes, -1).astype(np.uint8)


def pillow(image, **how):
    out = io.BytesIO()
    image.save(out, "JPEG", **how)
    return out.getvalue()


def kinds(folder):
    """Every kind of JPEG, of real encoders."""
    source, deep = folder / "source.ppm", folder / "source.png"
    rgb = Image.fromarray(texture(39, 30))
    rgb.save(source)
    rgb.save(deep)
    Image.fromarray(texture(39, 30)[..., 0]).save(folder / "grey.pgm")
    run = lambda *how: subprocess.run([str(word) for word in how], check=True, capture_output=True).stdout
    cjpeg = lambda *how: run("cjpeg", "-quality", "70", *how, source)
    magick = lambda *how: run("convert", source, *how, "jpg:-")

    def ffmpeg(format, *how):
        return run("ffmpeg", "-loglevel", "error", "-i", deep, "-pix_fmt", format, "-q:v", "3", *how, "-frames:v", "1", "-c:v", "mjpeg", "-f", "mjpeg", "-")

    yield "libjpeg-turbo 4:4:4", cjpeg("-sample", "1x1")
    yield "libjpeg-turbo 4:2:2", cjpeg("-sample", "2x1")
    yield "libjpeg-turbo 4:2:0", cjpeg("-sample", "2x2")
    yield "libjpeg-turbo 4:4:0", cjpeg("-sample", "1x2")
    yield "libjpeg-turbo 4:1:1", cjpeg("-sample", "4x1")
    yield "libjpeg-turbo grayscale", run("cjpeg", "-grayscale", folder / "grey.pgm")
    yield "libjpeg-turbo restart markers", cjpeg("-restart", "3B", "-sample", "2x2")
    yield "libjpeg-turbo progressive 4:2:0", cjpeg("-progressive", "-sample", "2x2")
    yield "libjpeg-turbo arithmetic", cjpeg("-arithmetic", "-sample", "2x2")
    yield "libjpeg-turbo restart markers, progressive 4:2:2", cjpeg("-restart", "1", "-progressive", "-sample", "2x1")
    yield "Pillow Adobe CMYK", pillow(Image.fromarray(texture(39, 30, 4), "CMYK"), quality=70)
    cmyk = folder / "cmyk.tif"
    Image.fromarray(texture(39, 30, 4), "CMYK").save(cmyk)
    yield "ImageMagick Adobe YCCK", run("convert", cmyk, "-quality", "70", "jpg:-")
    yield "ImageMagick 4:2:0", magick("-quality", "80", "-sampling-factor", "4:2:0")
    yield "ImageMagick progressive 4:2:2", magick("-quality", "60", "-interlace", "JPEG", "-sampling-factor", "4:2:2")
    yield "ImageMagick grayscale progressive", magick("-colorspace", "Gray", "-interlace", "JPEG")
    yield "Pillow Adobe RGB", pillow(rgb, quality=70, keep_rgb=True)
    yield "ffmpeg 4:2:0", ffmpeg("yuvj420p")
    yield "ffmpeg 4:2:2", ffmpeg("yuvj422p")
    yield "ffmpeg 4:4:4", ffmpeg("yuvj444p")
    mozjpeg = lambda quality, sampling: run("node", "-e", f"require('sharp')('{deep}').jpeg({{mozjpeg:true,quality:{quality},chromaSubsampling:'{sampling}'}}).toBuffer().then(file=>process.stdout.write(file))")
    yield "mozjpeg progressive 4:2:0", mozjpeg(75, "4:2:0")
    yield "mozjpeg progressive 4:4:4", mozjpeg(60, "4:4:4")
    for width, height in [(1, 1), (2, 9), (17, 16), (49, 17)]:
        Image.fromarray(texture(width, height)).save(source)
        yield f"libjpeg-turbo {width} x {height} 4:2:0", cjpeg("-sample", "2x2")
    for orientation in range(2, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        yield f"Pillow turned by EXIF {orientation}", pillow(Image.fromarray(texture(21, 14)), quality=70, exif=exif)
    yield "12 bits", imagecodecs.jpeg8_encode(texture(39, 30).astype(np.uint16) * 16, bitspersample=12)
    Image.fromarray(texture(39, 30)).save(source)
    yield "cut to two thirds", (lambda file: file[:len(file) * 2 // 3])(cjpeg("-sample", "2x2"))
    yield "progressive, cut to two thirds", (lambda file: file[:len(file) * 2 // 3])(cjpeg("-progressive", "-sample", "2x2"))


def decoded(file):
    """A JPEG as Pillow shows it; none where it does not."""
    try:
        image = Image.open(io.BytesIO(file))
        image.load()
    except OSError:
        return None
    return ImageOps.exif_transpose(image).convert("RGB")


def frames(config, image):
    """What the library's processor makes of a picture: bytes of all frames, one behind the other."""
    name = config.get("image_processor_type", "CLIPImageProcessor").removesuffix("Fast")
    own = {key: value for key, value in config.items() if key not in ("image_processor_type", "feature_extractor_type", "processor_class")}
    bare = {**own, "do_rescale": False, "do_normalize": False}
    if name == "Idefics2ImageProcessor": bare["do_pad"] = False
    if name == "Qwen2VLImageProcessor" and "min_pixels" in own:
        bare["size"] = {"shortest_edge": bare.pop("min_pixels"), "longest_edge": bare.pop("max_pixels")}
    made = CLASSES[name](**bare)([[image]] if name.startswith(("Idefics", "SmolVLM", "Mllama")) else [image], return_tensors=None if name == "Idefics2ImageProcessor" else "np")
    first = made["pixel_values"][0]
    if name == "Idefics2ImageProcessor":
        return b"".join(np.asarray(frame).astype(np.uint8).transpose(1, 2, 0).tobytes() for frame in first)
    if name == "Qwen2VLImageProcessor":
        (_, rows, cols), patch, joined = made["image_grid_thw"][0].tolist(), config["patch_size"], config["merge_size"]
        pixels = made["pixel_values"].reshape(rows // joined, cols // joined, joined, joined, 3, 2, patch, patch)[..., 0, :, :]
        return pixels.transpose(0, 2, 5, 1, 3, 6, 4).reshape(rows * patch, cols * patch, 3).astype(np.uint8).tobytes()
    if name == "PixtralImageProcessor":
        rows, cols = np.asarray(made["image_sizes"][0]).tolist()
        first = first[:, :rows, :cols]
    if name == "MllamaImageProcessor":
        # (tiles, 3, side, side), those of the canvas row by row: of which form says the processor's own function.
        from transformers.models.mllama.image_processing_pil_mllama import get_optimal_tiled_canvas
        side, tiles = config["size"]["height"], config["max_image_tiles"]
        high, wide = [pixels // side for pixels in get_optimal_tiled_canvas(image_height=image.height, image_width=image.width, max_image_tiles=tiles, tile_size=side)]
        shown = first[0][:high * wide].reshape(high, wide, 3, side, side)
        return shown.transpose(0, 3, 1, 4, 2).reshape(high * side, wide * side, 3).astype(np.uint8).tobytes()
    first = first.astype(np.uint8)
    first = (first if first.ndim == 4 else first[None]).transpose(0, 2, 3, 1)
    if name != "LlavaNextImageProcessor":
        return np.ascontiguousarray(first).tobytes()
    side = first.shape[1]
    best = select_best_resolution((image.height, image.width), config["image_grid_pinpoints"])
    tiles = first[1:].reshape(best[0] // side, best[1] // side, side, side, 3).transpose(0, 2, 1, 3, 4)
    return np.ascontiguousarray(first[0]).tobytes() + np.ascontiguousarray(tiles).tobytes()


def settings():
    """The image processor's settings of each model of this folder, as the model's own processor passes them on."""
    found = {}
    for path in sorted(HERE.iterdir()):
        for name in ("processor_config.json", "preprocessor_config.json"):
            if not (path / name).exists(): continue
            config = json.loads((path / name).read_text())
            joined = config.get("spatial_merge_size", 1)
            own = config.get("image_processor", config if name.startswith("pre") else None)
            if own is None: continue
            if joined > 1: own = {**own, "patch_size": config["patch_size"] * joined}
            found[path.name] = own
    return found


def make():
    with tempfile.TemporaryDirectory() as folder:
        files = list(kinds(pathlib.Path(folder)))
    entries, stored = [], []
    for name, file in files:
        image = decoded(file)
        entry = {"kind": name, "jpeg": len(file)}
        stored.append(file)
        if image is not None:
            out = io.BytesIO()
            image.save(out, "PNG", optimize=True)
            stored.append(out.getvalue())
            entry |= {"png": len(out.getvalue()), "frames": {}}
            for model, config in settings().items():
                try:
                    entry["frames"][model] = hashlib.sha256(frames(config, image)).hexdigest()[:16]
                except (ValueError, ZeroDivisionError) as error:
                    print(f"{model} refuses {name}: {error}")
        entries.append(entry)
    (HERE / "jpegs.bin").write_bytes(b"".join(stored))
    (HERE / "jpegs.json").write_text("[\n" + ",\n".join(json.dumps(entry) for entry in entries) + "\n]\n")
    print(len(entries), sum(map(len, stored)))


if __name__ == "__main__": make()
