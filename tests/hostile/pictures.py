"""Pictures that are meant to end, stall or bloat an engine: mutations of every format, whole bombs of each, over HTTP to `hanzo-engine serve` with a model that sees
(models/hanzo-see). Every one is answered or refused with 4xx, the process stays the same one within a bound of memory, and another client's chats go on meanwhile.
usage: pictures.py HANZO_ENGINE_BINARY [MUTATIONS [SEED]]      1,000 of each format where it is not said"""
import base64, http.client, json, os, random, re, statistics, struct, sys, threading, time, zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "clients"))
from engine import ROOT, Engine, check, run_checks

MUTATIONS, SEED = [*map(int, sys.argv[2:4]), *[1000, 21][len(sys.argv[2:4]):]]
FORMATS = ("png", "jpg", "gif", "webp", "bmp", "tiff", "qoi")
READ = FORMATS[:4]  # the others are refused, whatever is in them
PIXELS_MAX = 50_000_000
# Beside what the server has when it is ready: two pictures are decoded at a time, each of at most 50 million pixels of which a decoder holds nine bytes (a progressive JPEG's
# numbers, and what they become), while what others sent is still held.
MIXED_MIB, BOMB_MIB, BOMBS_MIB = 64, PIXELS_MAX * 9 // 2**20 + 64, 2 * PIXELS_MAX * 9 // 2**20 + 256
# Another client's chats never stand behind pictures, whose decoding takes the processors' time all the same.
CHAT_S_MAX = 3
CLIENTS = 8


def chunk(kind, data, crc=None): return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data) if crc is None else crc)
def header(width, height, depth=8, color=2, interlaced=0): return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, interlaced))
def png(width, height, *chunks, **kind): return b"\x89PNG\r\n\x1a\n" + header(width, height, **kind) + b"".join(chunks) + chunk(b"IEND", b"")


def zeros(count, level=9):
    """So many zeros, as zlib has them, without having them."""
    packer, packed = zlib.compressobj(level), []
    for _ in range(count >> 20): packed.append(packer.compress(bytes(1 << 20)))
    return b"".join(packed) + packer.compress(bytes(count & 0xFFFFF)) + packer.flush()


def bits(*fields):
    """Numbers of so many bits, the lowest first."""
    number = at = 0
    for value, count in fields: number, at = number | value << at, at + count
    return number.to_bytes((at + 7) // 8, "little")


def riff(*chunks):
    body = b"WEBP" + b"".join(kind + struct.pack("<I", len(data)) + data + bytes(len(data) % 2) for kind, data in chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def plain_webp(width, height):
    """A lossless picture of one colour: no pixel of it takes a bit."""
    one = ((1, 1), (0, 1), (1, 1), (7, 8))  # a code with one symbol
    return bits((0x2F, 8), (width - 1, 14), (height - 1, 14), (0, 1), (0, 3), (0, 1), (0, 1), (0, 1), *one * 4, (1, 1), (0, 1), (0, 1), (0, 1))


def lossy_webp(width, height): return b"\x10\x02\x00\x9d\x01\x2a" + struct.pack("<HH", width, height) + bytes(64)
def canvas(width, height, flags=0x10): return bits((flags, 8), (0, 24), (width - 1, 24), (height - 1, 24))


def gif(width, height, *blocks, frame=None):
    """A screen with a frame of its size, or of another, whose codes are all the same colour."""
    wide, high = frame or (width, height)
    data = lzw(wide * high) if wide * high <= 2 * PIXELS_MAX else b"\x04\x00\x51\x00\x00\x00"
    parts = b"".join(bytes([len(data[at:at + 255])]) + data[at:at + 255] for at in range(0, len(data), 255))
    return b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + bytes(6) + b"".join(blocks) + b"\x2c" + struct.pack("<HHHHB", 0, 0, wide, high, 0) + b"\x02" + parts + b"\x00;"


def lzw(pixels):
    """Codes of zeros for so many pixels: each code a run that is one longer than the one before."""
    number, at, size, following, run, left = 4, 3, 3, 6, 1, pixels
    out = bytearray()
    held = number; width = at
    code = 0
    while left > 0:
        held |= code << width; width += size
        while width >= 8: out.append(held & 255); held >>= 8; width -= 8
        left -= run
        if following < 4096:
            code, run, following = following, run + 1, following + 1
            if following - 1 >= 1 << size and size < 12: size += 1
        else:
            held |= 4 << width; width += size
            while width >= 8: out.append(held & 255); held >>= 8; width -= 8
            size, following, run, code = 3, 6, 1, 0
    held |= 5 << width; width += size
    while width > 0: out.append(held & 255); held >>= 8; width -= 8
    return bytes(out)


def marker(kind, data): return b"\xff" + bytes([kind]) + struct.pack(">H", len(data) + 2) + data


def jpeg(width, height, scans=1, progressive=False, entropy=b"\0" * 32):
    """A grey or coloured picture with the shortest codes there are: a zero bit is nothing new."""
    tables = marker(0xDB, bytes([0]) + b"\1" * 64) + b"".join(marker(0xC4, bytes([kind]) + b"\1" + bytes(15) + b"\0") for kind in (0x00, 0x10))
    frame = marker(0xC2 if progressive else 0xC0, struct.pack(">BHHB", 8, height, width, 3) + b"".join(bytes([part, 0x11, 0]) for part in (1, 2, 3)))
    dc = marker(0xDA, b"\3\1\0\2\0\3\0" + (b"\0\0\0" if progressive else b"\0\x3f\0")) + entropy
    return b"\xff\xd8" + tables + frame + dc + b"".join(marker(0xDA, b"\1\1\0\1\x3f\0") + entropy for _ in range(scans - 1)) + b"\xff\xd9"


def bmp(width, height): return b"BM" + struct.pack("<IHHIIiiHHIIiiII", 54 + 48, 0, 0, 54, 40, width, height, 1, 24, 0, 48, 2835, 2835, 0, 0) + bytes(48)
def qoi(width, height): return b"qoif" + struct.pack(">IIBB", width, height, 3, 0) + b"\xfd" * 64 + b"\0" * 7 + b"\1"


def tiff(width, height):
    entries = [(256, 4, 1, width), (257, 4, 1, height), (258, 3, 1, 8), (259, 3, 1, 8), (262, 3, 1, 1), (273, 4, 1, 8), (277, 3, 1, 1), (278, 4, 1, height), (279, 4, 1, 64)]
    return b"II*\0" + struct.pack("<I", 72) + zeros(1 << 16)[:64].ljust(64, b"\0") + struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", *entry) for entry in entries) + bytes(4)


def bombs():
    """By what each is: the picture, and whether it may be answered. Sides that are just within the limit are, where all pixels are there."""
    within = (7071, 7071)
    assert within[0] * within[1] <= PIXELS_MAX
    rows = lambda width, height, bytes_each: chunk(b"IDAT", zeros(height * (1 + width * bytes_each)))
    frames = chunk(b"acTL", struct.pack(">II", 0xFFFFFF, 0)) + chunk(b"fcTL", struct.pack(">IIIIIHHBB", 0, *within, 0, 0, 1, 1, 0, 0))
    small = zlib.compress(b"\0" + bytes(3))
    yield "png 2^31", png(2**31 - 1, 2**31 - 1, chunk(b"IDAT", small)), False
    yield "png over the limit", png(7072, 7072, chunk(b"IDAT", small)), False
    yield "png of nothing", png(0, 0, chunk(b"IDAT", small)), False
    yield "png within the limit, grey", png(*within, rows(*within, 1), color=0), True
    yield "png within the limit, with opacity", png(*within, rows(*within, 4), color=6), True
    yield "png within the limit, 16 bits with opacity", png(*within, rows(*within, 8), color=6, depth=16), True
    yield "png within the limit, interlaced", png(*within, rows(7071, 7500, 3), interlaced=1), True
    yield "png of a line", png(PIXELS_MAX, 1, rows(PIXELS_MAX, 1, 3)), True
    yield "png of a column", png(1, PIXELS_MAX, rows(1, PIXELS_MAX, 3)), True
    yield "png with a gigabyte behind its pixel", png(1, 1, chunk(b"IDAT", zeros(1 << 30))), True
    yield "png with a profile of a gigabyte", png(1, 1, chunk(b"iCCP", b"a\0\0" + zeros(1 << 30)), chunk(b"IDAT", small)), True
    yield "png with a text of a gigabyte", png(1, 1, chunk(b"zTXt", b"a\0\0" + zeros(1 << 30)), chunk(b"IDAT", small)), True
    yield "png with 250,000 texts", png(1, 1, chunk(b"tEXt", b"a\0b") * 250_000, chunk(b"IDAT", small)), True
    yield "png with 300,000 parts", png(1, 1, chunk(b"IDAT", b"") * 300_000, chunk(b"IDAT", small)), True
    yield "png that moves", png(*within, frames, rows(*within, 3)), True
    yield "png that says four gigabytes", b"\x89PNG\r\n\x1a\n" + header(1, 1) + struct.pack(">I", 2**31 - 1) + b"iCCP" + bytes(100), False
    yield "gif over the limit", gif(65535, 65535), False
    yield "gif with a frame over the limit", gif(1, 1, frame=(65535, 65535)), False
    yield "gif within the limit", gif(*within), True
    yield "gif within the limit, a small frame", gif(*within, frame=(1, 1)), True
    yield "gif with 700,000 comments", gif(1, 1, b"\x21\xfe\x01a\x00" * 700_000), True
    yield "gif with a comment without an end", b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0, 0, 0) + b"\x21\xfe" + b"\xffx" * 1_900_000, False
    yield "webp over the limit", riff((b"VP8L", plain_webp(16384, 16384))), False
    yield "webp within the limit", riff((b"VP8L", plain_webp(*within))), True
    yield "webp on a canvas of 2^24", riff((b"VP8X", canvas(2**24, 2**24)), (b"VP8L", plain_webp(1, 1))), False
    yield "webp larger than its canvas", riff((b"VP8X", canvas(1, 1)), (b"VP8L", plain_webp(16384, 16384))), False
    yield "webp with a profile without an end", riff((b"VP8X", canvas(4, 4, 0x20)), (b"ICCP", bytes(3_900_000)), (b"VP8L", plain_webp(4, 4))), True
    yield "webp, lossy, over the limit", riff((b"VP8 ", lossy_webp(16383, 16383))), False
    yield "webp, lossy, cut", riff((b"VP8 ", lossy_webp(*within))), True
    yield "webp that moves, larger than its canvas", riff((b"VP8X", canvas(4, 4, 0x12)), (b"ANIM", bytes(6)), (b"ANMF", bits((0, 48), (16383, 24), (16383, 24), (0, 32)) + b"VP8L" + struct.pack("<I", 24) + plain_webp(16384, 16384).ljust(24, b"\0"))), False
    yield "webp with 480,000 chunks", riff((b"VP8X", canvas(4, 4)), *[(b"abcd", b"")] * 480_000, (b"VP8L", plain_webp(4, 4))), True
    yield "jpeg over the limit", jpeg(65500, 65500), False
    yield "jpeg within the limit, cut", jpeg(*within), True
    yield "jpeg within the limit, progressive", jpeg(*within, progressive=True), True
    yield "jpeg that passes over itself 60 times", jpeg(*within, progressive=True, scans=60), True
    yield "jpeg that passes over itself 20,000 times", jpeg(*within, progressive=True, scans=20_000, entropy=b"\0"), False
    yield "jpeg of a line", jpeg(65500, 1, entropy=b"\0" * 9000), True
    yield "jpeg with 4 MB of comments", b"\xff\xd8" + marker(0xFE, bytes(65_000)) * 60 + jpeg(8, 8)[2:], True
    yield "bmp", bmp(2**31 - 1, 2**31 - 1), False
    yield "tiff", tiff(2**32 - 1, 2**32 - 1), False
    yield "qoi", qoi(2**32 - 1, 2**32 - 1), False
    yield "nothing", b"", False
    yield "a letter", b"a", False
    yield "zeros", bytes(7_000_000), False


def corpus():
    found = {kind: [] for kind in FORMATS}
    for folder in ("crates/media/testdata", "tests/data/fuzz/picture"):
        for name in sorted(os.listdir(os.path.join(ROOT, folder))):
            kind = name.rpartition(".")[2]
            if kind in found: found[kind].append(open(os.path.join(ROOT, folder, name), "rb").read())
    for kind, write in (("bmp", bmp), ("tiff", tiff), ("qoi", qoi)): found[kind] += [write(4, 4), write(16, 1)]
    assert all(len(files) > 1 for files in found.values()), {kind: len(files) for kind, files in found.items()}
    return found


EDGES = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 2**63 - 1, 2**64 - 1)


def mutated(files, random):
    """One of the files, changed in one to eight places; of a PNG's chunks the sums are often made right again, or no decoder would look further."""
    data = bytearray(random.choice(files))
    for _ in range(random.randint(1, 8)):
        start = random.randint(0, len(data))
        end = min(start + random.randint(1, 16), len(data))
        match random.randrange(8):
            case 0 if start < len(data): data[start] ^= 1 << random.randrange(8)
            case 1 if start < len(data): data[start] = random.randrange(256)
            case 2: del data[start:end]
            case 3:
                width = random.choice((1, 2, 4, 8))
                data[start:start + width] = (random.choice(EDGES) & (1 << 8 * width) - 1).to_bytes(width, random.choice(("little", "big")))
            case 4: at = random.randint(0, len(data)); data[at:at] = data[start:start + 64]
            case 5: other = random.choice(files); at = random.randint(0, len(other)); data[start:end] = other[at:at + random.randint(1, 128)]
            case 6: data[start:start] = random.randbytes(random.randint(1, 32))
            case 7 if random.random() < 0.2: del data[start:]
            case _ if data: data[random.randrange(min(64, len(data)))] = random.randrange(256)
    return bytes(mended(data) if data[:4] == b"\x89PNG" and random.random() < 0.7 else data)


def mended(data):
    at = 8
    while at + 12 <= len(data):
        length = struct.unpack(">I", data[at:at + 4])[0]
        if at + 12 + length > len(data): break
        data[at + 8 + length:at + 12 + length] = struct.pack(">I", zlib.crc32(data[at + 4:at + 8 + length]))
        at += 12 + length
    return data


class Server:
    def __init__(self, engine, model):
        self.engine, self.model, self.threads = engine, model, threading.local()

    def memory(self, line):
        return int(re.search(rf"{line}:\s+(\d+)", open(f"/proc/{self.engine.process.pid}/status").read())[1]) / 1024

    def forget_peak(self):
        open(f"/proc/{self.engine.process.pid}/clear_refs", "w").write("5")

    def post(self, content):
        """Status and body of a chat's answer."""
        # A connection on which nothing was asked for long may be closed.
        connection = getattr(self.threads, "connection", None)
        if connection is None or time.monotonic() - self.threads.since > 5:
            connection = self.threads.connection = http.client.HTTPConnection(self.engine.http, timeout=120)
        self.threads.since = time.monotonic()
        body = json.dumps({"model": self.model, "messages": [{"role": "user", "content": content}], "max_tokens": 2, "temperature": 0})
        try:
            connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        except OSError:
            connection.close()
            raise
        finally: self.threads.since = time.monotonic()

    def show(self, picture):
        status, body = self.post([{"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(picture).decode()}}, {"type": "text", "text": "What is it?"}])
        if status not in (200, 429):
            error = json.loads(body)["error"]
            assert status == 413 or 400 <= status < 500 and error["param"] and error["param"].startswith("messages"), (status, error)
        return status, body


class Others:
    """A client that has its own chats meanwhile: every one is answered, and so soon."""

    def __init__(self, server):
        self.server, self.times, self.failed, self.stop = server, [], [], threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.stop.is_set():
            began = time.monotonic()
            try:
                status, body = self.server.post("What colour is the circle?")
                if status != 200: self.failed.append((status, body[:200]))
            except OSError as error: self.failed.append(error)
            self.times.append(time.monotonic() - began)
            time.sleep(0.01)

    def __enter__(self):
        self.server.forget_peak()
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()

    def told(self):
        assert self.times and not self.failed, self.failed[:3]
        assert max(self.times) < CHAT_S_MAX, f"a chat took {max(self.times):.1f} s"
        return f"another client's {len(self.times)} chats: median {statistics.median(self.times) * 1000:.0f} ms, at most {max(self.times) * 1000:.0f} ms"


@check
def mutations_are_answered_or_refused(server, before):
    files, told, failed = corpus(), [], []
    with Others(server) as others, ThreadPoolExecutor(CLIENTS) as pool:
        for kind in FORMATS:
            source = random.Random(f"{SEED} {kind}")
            pictures = [mutated(files[kind], source) for _ in range(MUTATIONS)]
            statuses = Counter(status for status, _ in pool.map(server.show, pictures))
            told.append(f"{kind} {dict(sorted(statuses.items()))}")
            if set(statuses) - {200, 400, 413} or 200 in statuses and kind not in READ or MUTATIONS >= 500 and len(statuses) < 2 and kind in READ: failed.append(told[-1])
    peak = server.memory("VmHWM") - before
    assert not failed, failed
    assert peak < MIXED_MIB, f"{peak:.0f} MiB more than before"
    return f"{', '.join(told)}; at most {peak:.0f} MiB over {before:.0f}; {others.told()}"


@check
def a_bomb_is_answered_or_refused(server, before):
    slowest, most, count = (0, ""), (0, ""), 0
    with Others(server) as others:
        for name, picture, may in bombs():
            server.forget_peak()
            began = time.monotonic()
            status, body = server.show(picture)
            took, peak = time.monotonic() - began, server.memory("VmHWM") - before
            print(f"  {name}: {len(picture):,} bytes, {status} in {took:.2f} s, {peak:.0f} MiB" + ("" if status == 200 else ": " + json.loads(body)["error"]["message"][:150]), flush=True)
            assert status in (400, 413) or may and status == 200, (name, status, body[:300])
            slowest, most, count = max(slowest, (took, name)), max(most, (peak, name)), count + 1
            assert peak < BOMB_MIB, f"{name}: {peak:.0f} MiB"
            assert took < 10, f"{name}: {took:.1f} s"
    return f"{count}; the slowest {slowest[0]:.2f} s ({slowest[1]}), most memory {most[0]:.0f} MiB ({most[1]}); {others.told()}"


@check
def many_bombs_at_a_time_take_no_more_than_those_that_are_decoded(server, before):
    largest = [picture for name, picture, may in bombs() if may and "within the limit" in name]
    with Others(server) as others, ThreadPoolExecutor(4 * CLIENTS) as pool:
        statuses = Counter(status for status, _ in pool.map(server.show, largest * 4))
    peak = server.memory("VmHWM") - before
    assert set(statuses) <= {200, 400, 429}, statuses
    assert peak < BOMBS_MIB, f"{peak:.0f} MiB"
    return f"{dict(statuses)}, at most {peak:.0f} MiB; {others.told()}"


@check
def afterwards_it_is_as_it_was(server, before):
    picture = open(os.path.join(ROOT, "crates/media/testdata/rgb.png"), "rb").read()
    assert server.show(picture)[0] == 200 and server.engine.process.poll() is None
    left = server.memory("VmRSS") - before
    assert left < MIXED_MIB, f"{left:.0f} MiB"
    metrics = server.engine.text("/metrics", server.engine.admin)
    restarts = sum(float(line.rpartition(" ")[2]) for line in metrics.splitlines() if "restart" in line and not line.startswith("#"))
    assert restarts == 0, restarts
    return f"{left:.0f} MiB more than before, no restart"


if __name__ == "__main__":
    with Engine("--model", os.path.join(ROOT, "models/hanzo-see"), "--log-level", "warn") as engine:
        server = Server(engine, "hanzo-see")
        for _ in range(3): assert server.show(open(os.path.join(ROOT, "crates/media/testdata/rgb.png"), "rb").read())[0] == 200
        sys.exit(run_checks(server, server.memory("VmRSS")))
