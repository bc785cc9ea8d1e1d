"""Sounds that are meant to end, stall or bloat an engine, over HTTP to `hanzo-engine serve` with a model that transcribes (tests/data/whisper/small): mutations of every
container, forms without an end, and clients that leave. Every one is answered or refused with 4xx within a bound of memory, and what a client leaves is free again.
usage: sounds.py HANZO_ENGINE_BINARY [MUTATIONS [SEED]]      1,000 of each container where it is not said"""
import http.client, itertools, os, random, re, socket, struct, sys, threading, time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "clients"))
from engine import ROOT, Engine, check, run_checks

MUTATIONS, SEED = [*map(int, sys.argv[2:4]), *[1000, 7][len(sys.argv[2:4]):]]
CLIENTS = 4
# Beside what the server has when it is ready: uploads that are held until their model is known, 25 MiB at most each.
SPARE_MIB = 64
# Of uploads that are under way at once, what is on its way to the decoder of each.
UPLOADS, UPLOAD_MIB = 64, 4
KIND = "multipart/form-data; boundary=q"
FILE = b'--q\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
WAV = b"RIFF\xff\xff\xff\xffWAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 16000, 32000, 2, 16) + b"data\xff\xff\xff\xff"


def field(name, value): return f'--q\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()


MODEL = field("model", "small") + field("temperature", "0")


def corpus():
    found, folder = defaultdict(list), os.path.join(ROOT, "crates/sound/testdata")
    for name in sorted(os.listdir(folder)):
        kind = name.rpartition(".")[2]
        if kind not in ("py", "bin"): found[kind].append(open(os.path.join(folder, name), "rb").read())
    assert len(found) >= 10, sorted(found)
    return found


def mutated(data, random):
    """A file changed in one to sixteen places, more often near its beginning."""
    data = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 4, 16))):
        if not data: break
        at = random.randrange(min(len(data), random.choice((64, 512, 1 << 20))))
        match random.randrange(7):
            case 0: data[at] ^= 1 << random.randrange(8)
            case 1: data[at] = random.choice((0, 255, 127, 128, 1))
            case 2: del data[at:at + random.randrange(1, 64)]
            case 3: data[at:at] = random.randbytes(random.randrange(1, 16))
            case 4: data[at:at + 4] = random.choice((b"\xff" * 4, b"\0" * 4, b"\x7f\xff\xff\xff", b"\x80\0\0\0"))
            case 5: del data[at:]
            case 6: data[at:at + 8] = data[random.randrange(len(data)):][:8]
    return bytes(data)


class Server:
    def __init__(self, engine):
        self.engine = engine
        self.ready = self.memory("VmRSS")

    def memory(self, line): return int(re.search(rf"{line}:\s+(\d+)", open(f"/proc/{self.engine.process.pid}/status").read())[1]) / 1024
    def files(self): return len(os.listdir(f"/proc/{self.engine.process.pid}/fd"))

    def is_well(self, spare_mib=SPARE_MIB):
        """The same process, within its bound. Gives how much it took at most."""
        peak = self.memory("VmHWM")
        assert self.engine.process.poll() is None and peak < self.ready + spare_mib, f"{peak:.0f} MiB, {self.ready:.0f} when it was ready"
        return f"at most {peak:.0f} MiB"

    def stream(self, pieces, kind=KIND, leave=None):
        """Sends a body without a length until it is refused or over, and gives what the server says, and how many bytes it took. Leaves behind `leave` bytes."""
        with socket.create_connection(self.engine.http.split(":"), timeout=60) as stream:
            sent = 0
            head = f"POST /v1/audio/transcriptions HTTP/1.1\r\nhost: {self.engine.http}\r\nconnection: close\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n"
            try:
                stream.sendall(head.encode())
                for piece in pieces:
                    stream.sendall(b"%x\r\n" % len(piece) + piece + b"\r\n")
                    sent += len(piece)
                    if leave is not None and sent >= leave: return 0, b"", sent
                stream.sendall(b"0\r\n\r\n")
            except OSError: pass
            said = b""
            try:
                while piece := stream.recv(65536): said += piece
            except OSError: pass
        return int(said.split(None, 2)[1]) if said.startswith(b"HTTP/1.1 ") else 0, said, sent


@check
def mutations_are_heard_or_refused(server):
    notes = []
    for kind, files in corpus().items():
        draws = random.Random(SEED)
        bodies = [mutated(files[at % len(files)], draws) for at in range(MUTATIONS)]
        held = threading.local()

        def send(body):
            connection = held.__dict__.setdefault("connection", http.client.HTTPConnection(server.engine.http, timeout=300))
            connection.request("POST", "/v1/audio/transcriptions", MODEL + FILE + body + b"\r\n--q--\r\n", {"content-type": KIND})
            answer = connection.getresponse()
            return answer.status, answer.read()

        began = time.monotonic()
        with ThreadPoolExecutor(CLIENTS) as clients: answers = list(clients.map(send, bodies))
        odd = [answer for answer in answers if answer[0] not in (200, 400)]
        assert not odd, (kind, odd[:3])
        notes.append(f"{kind} {dict(sorted(Counter(status for status, _ in answers).items()))} in {time.monotonic() - began:.0f} s")
    return f"{'; '.join(notes)}; {server.is_well()}"


def endless(piece): return itertools.repeat(piece, (1 << 28) // len(piece))


@check
def forms_without_an_end_are_refused(server):
    letters, notes = b"y" * 65536, []
    for name, pieces in {
        "100,000 parts": [field("prompt", "x") * 1000] * 100 + [b"--q--\r\n"],
        "heads": itertools.chain([b"--q\r\n"], endless(b"x-a: " + letters[:65000] + b"\r\n")),
        "a head": itertools.chain([b"--q\r\ncontent-disposition: "], endless(letters)),
        "a field": itertools.chain([field("prompt", "")[:-2]], endless(letters)),
        "a field that is not known": itertools.chain([field("zzz", "")[:-2]], endless(letters)),
        "what comes before the first part": endless(letters),
        "a sound": itertools.chain([MODEL + FILE + WAV], endless(bytes(65536))),
        "a sound whose model is not said": itertools.chain([FILE + WAV], endless(b"\1\0" * 32768)),
        "two sounds": [MODEL + (FILE + WAV + bytes(3200) + b"\r\n") * 2 + b"--q--\r\n"],
        "a form that is cut": [MODEL + FILE + WAV + bytes(3200)],
    }.items():
        status, said, sent = server.stream(pieces)
        assert 400 <= status < 500, (name, status, said[-300:], sent)
        notes.append(f"{name} {status} after {sent / 2**20:.1f} MiB")
    for kind in ("multipart/form-data", "multipart/form-data; boundary=" + "b" * 7000):
        status, said, _ = server.stream([b"x" * 100], kind)
        assert 400 <= status < 500, (kind[:40], said[-300:])
    return f"{'; '.join(notes)}; {server.is_well()}"


@check
def what_clients_leave_is_free_again(server):
    noise, files = random.Random(SEED).randbytes(65536), server.files()

    def gauge():
        found = re.findall(r"^hanzo_engine_(?:requests_running|queue_depth)\b.* (\S+)$", server.engine.text("/metrics", server.engine.admin), re.M)
        assert len(found) == 2, found
        return sum(map(float, found))

    before = gauge()
    upload = [MODEL + FILE + WAV, *[noise] * 100]
    with ThreadPoolExecutor(UPLOADS) as clients: list(clients.map(lambda _: server.stream(upload, leave=1 << 20), range(UPLOADS)))
    whole = [MODEL + FILE + WAV + noise * 20 + b"\r\n--q--\r\n"]
    with ThreadPoolExecutor(16) as clients: list(clients.map(lambda _: server.stream(whole, leave=1), range(16)))
    began = time.monotonic()
    while server.files() > files or gauge() > before:
        assert time.monotonic() - began < 30, (server.files(), files, gauge(), before)
        time.sleep(0.05)
    return f"{UPLOADS + 16} left, free after {time.monotonic() - began:.1f} s; {server.is_well(UPLOADS * UPLOAD_MIB)}"


if __name__ == "__main__":
    with Engine("--model", os.path.join(ROOT, "tests/data/whisper/small")) as engine: sys.exit(1 if run_checks(Server(engine)) else 0)
