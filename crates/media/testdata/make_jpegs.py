"""JPEG files of several encoders and the pixels that Pillow reads from them: `jpegs.bin` has the files one behind the other, `jpegs.json` their
names, lengths, sizes and the SHA-256 of their RGB pixels.

Needs Pillow with libjpeg-turbo, numpy, and `cjpeg` of libjpeg-turbo-progs. Run: python make_jpegs.py"""

import hashlib
import io
import json
import pathlib
import subprocess
import tempfile

import numpy as np
from PIL import Image

HERE = pathlib.Path(__file__).parent
FOUND = []


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


def add(name, data):
    image = Image.open(io.BytesIO(data))
    image.load()
    rgb = image.convert("RGB")
    FOUND.append((name, data, rgb.size, hashlib.sha256(rgb.tobytes()).hexdigest()))


def pillow(name, image, **how):
    out = io.BytesIO()
    image.save(out, "JPEG", **how)
    add(f"pillow {name}", out.getvalue())
    return out.getvalue()


def segments(data):
    """Markers and contents up to the first scan, and what follows."""
    at, found = 2, []
    while data[at + 1] != 0xDA:
        length = int.from_bytes(data[at + 2:at + 4], "big")
        found.append((data[at + 1], data[at:at + 2 + length]))
        at += 2 + length
    return found, data[at:]


def of_pillow():
    for width, height in [(1, 1), (2, 3), (5, 3), (8, 8), (17, 33), (33, 17)]:
        image = Image.fromarray(texture(width, height))
        for sampling, name in enumerate(["4:4:4", "4:2:2", "4:2:0"]):
            pillow(f"{width}x{height} {name}", image, subsampling=sampling, quality=60)
        pillow(f"{width}x{height} progressive", image, progressive=True, quality=70)
        pillow(f"{width}x{height} CMYK", Image.fromarray(texture(width, height, 4), "CMYK"), quality=60)
    image = Image.fromarray(texture(23, 19))
    for quality in [1, 10, 50, 85, 100]:
        pillow(f"quality {quality}", image, quality=quality)
    pillow("optimized", image, optimize=True)
    pillow("restarts by blocks", image, restart_marker_blocks=1)
    pillow("restarts by rows, progressive", image, restart_marker_rows=1, progressive=True)
    pillow("RGB by Adobe's marker", image, keep_rgb=True)
    pillow("grey", image.convert("L"), quality=80)
    pillow("grey progressive", image.convert("L"), quality=80, progressive=True)
    pillow("CMYK progressive", Image.fromarray(texture(23, 19, 4), "CMYK"), quality=60, progressive=True)
    steps = [[1000 - 10 * at for at in range(64)], [300 + at for at in range(64)]]
    plain = pillow("plain", image, quality=75)
    found, rest = segments(plain)
    tables = b"".join(bytes([0x10 | index]) + b"".join(step.to_bytes(2, "big") for step in table) for index, table in enumerate(steps))
    wide = b"\xff\xdb" + (2 + len(tables)).to_bytes(2, "big") + tables
    join = lambda parts: b"\xff\xd8" + b"".join(parts) + rest
    add("16-bit quantization", join([wide] + [part for marker, part in found if marker != 0xDB]))
    add("no Huffman tables", join([part for marker, part in found if marker != 0xC4]))
    add("no JFIF marker", join([part for marker, part in found if marker != 0xE0]))
    adobe = lambda transform: b"\xff\xee\x00\x0eAdobe\0\x64\0\0\0\0" + bytes([transform])
    four = pillow("CMYK by Adobe's marker", Image.fromarray(texture(23, 19, 4), "CMYK"), quality=75)
    found, rest = segments(four)
    for transform in [0, 1, 2]:
        add(f"four components, transform {transform}", join([adobe(transform)] + [part for marker, part in found if marker != 0xEE]))
    add("four components, no marker", join([part for marker, part in found if marker != 0xEE]))
    add("garbage behind it", plain + b"\xff\xd8garbage")
    add("its end in the middle", plain[:-150] + b"\xff\xd9")
    restarted = pillow("restarts", image, restart_marker_blocks=1, subsampling=0)
    add("a restart marker is lost", restarted.replace(b"\xff\xd1", b"\0\0", 1))
    add("restart markers of a wrong number", restarted.replace(b"\xff\xd1", b"\xff\xd2", 1))


SAMPLINGS = ["1x1", "2x1", "1x2", "2x2", "4x1", "1x4", "4x2", "2x4", "3x1", "1x3", "1x1,2x2,2x2", "2x1,1x2,1x1", "2x2,2x1,1x2", "4x1,2x1,1x1", "1x4,1x2,1x1"]

SCANS = {
    "one component a scan": "0;\n1;\n2;\n",
    "two components and one": "0 1;\n2;\n",
    "averages alone": "0 1 2: 0-0, 0, 0;\n",
    "averages and some": "0 1 2: 0-0, 0, 0;\n0: 1-5, 0, 0;\n",
    "not to the last bit": "0: 0-0, 0, 2;\n1 2: 0-0, 0, 3;\n0: 1-2, 0, 1;\n",
    "all bits in many": "0 1 2: 0-0, 0, 1;\n0: 1-5, 0, 2;\n2: 1-63, 0, 1;\n1: 1-63, 0, 1;\n0: 6-63, 0, 2;\n0: 1-63, 2, 1;\n0 1 2: 0-0, 1, 0;\n"
                        "2: 1-63, 1, 0;\n1: 1-63, 1, 0;\n0: 1-63, 1, 0;\n",
}


def of_cjpeg():
    with tempfile.TemporaryDirectory() as folder:
        picture, script = pathlib.Path(folder, "picture.ppm"), pathlib.Path(folder, "scans")

        def cjpeg(*how):
            return subprocess.run(["cjpeg", *how, picture], check=True, capture_output=True).stdout

        Image.fromarray(texture(21, 35)).save(picture)
        for sampling in SAMPLINGS:
            add(f"cjpeg {sampling}", cjpeg("-quality", "60", "-sample", sampling))
        for sampling in ["2x2", "1x2"]:
            add(f"cjpeg {sampling} progressive", cjpeg("-progressive", "-sample", sampling))
            add(f"cjpeg {sampling} arithmetic", cjpeg("-arithmetic", "-sample", sampling))
            add(f"cjpeg {sampling} arithmetic, progressive", cjpeg("-arithmetic", "-progressive", "-sample", sampling))
            add(f"cjpeg {sampling} arithmetic, restarts", cjpeg("-arithmetic", "-restart", "2B", "-sample", sampling))
        add("cjpeg grey, sampled twice", cjpeg("-grayscale", "-sample", "2x2"))
        Image.fromarray(texture(39, 57)).save(picture)
        for name, scans in SCANS.items():
            script.write_text(scans)
            for sampling in ["1x1", "2x2"]:
                add(f"cjpeg {sampling} {name}", cjpeg("-quality", "40", "-scans", script, "-sample", sampling))


of_pillow()
of_cjpeg()
(HERE / "jpegs.bin").write_bytes(b"".join(data for _, data, _, _ in FOUND))
(HERE / "jpegs.json").write_text("[\n" + ",\n".join(json.dumps(
    {"name": name, "bytes": len(data), "width": size[0], "height": size[1], "sha256": digest}) for name, data, size, digest in FOUND) + "\n]\n")
