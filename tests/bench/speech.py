#!/usr/bin/env python3
"""Speech with real weights: what a voice says is written down again, and how fast both are beside other programs.

    tests/bench/speech.py --engine target/release/hanzo-engine --voice kokoro --ears whisper-base --round-trip
    tests/bench/speech.py --engine … --voice kokoro --ears whisper-base --times [--sound CLIP.wav] [--threads 2] [--rounds 5]
        [--faster-whisper] [--onnx kokoro.onnx | --onnx voice.onnx]

`--round-trip` has the 40 sentences of speech.txt said and written down over HTTP, and counts words that are wrong after OpenAI's
normalisation of English (transformers has it, and the package whisper-normalizer its table of spellings), against the text or, where it
is another, the way it is said (behind a tab): the better of both. `--times` runs in turns and prints medians of ratios. Other programs see the same files or tokens on as many
threads, in this process. Nothing is downloaded; a program that is not asked for is not timed."""
import argparse, io, json, os, re, statistics, subprocess, sys, tempfile, threading, time, urllib.request, uuid, wave
from pathlib import Path

HERE = Path(__file__).parent


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", required=True); parser.add_argument("--voice", help="a model that speaks"); parser.add_argument("--ears", help="a Whisper")
    parser.add_argument("--round-trip", action="store_true"); parser.add_argument("--times", action="store_true")
    parser.add_argument("--name", default="", help="of the voice"); parser.add_argument("--keep", help="a folder for the sentences' sounds")
    parser.add_argument("--sound", action="append", default=[]); parser.add_argument("--faster-whisper", action="store_true"); parser.add_argument("--onnx")
    parser.add_argument("--whisper-cpp", help="a program that takes a ggml file, threads and a wav, and prints seconds"); parser.add_argument("--ggml")
    parser.add_argument("--cpu", action="store_true", help="processor seconds, for a machine that has other work"); parser.add_argument("--threads", type=int, default=2); parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


class Server:
    """`hanzo-engine serve` with models, on ports of its own choice."""

    def __init__(self, args, *models):
        command = [args.engine, "serve", *[word for model in models for word in ("--model", model)], "--port", "0", "--grpc-port", "0", "--admin-port", "0", "--threads", str(args.threads), "--log-level", "error"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "HANZO_MODELS_DIR": tempfile.mkdtemp()})
        for line in self.process.stdout:
            if match := re.search(r"http://(127\.0\.0\.1:\d+)", line):
                self.address = match[1]
                break
        else:
            sys.exit("hanzo-engine did not start")
        threading.Thread(target=lambda: [None for _ in self.process.stdout], daemon=True).start()
        while True:
            try:
                urllib.request.urlopen(f"http://{self.address}/ready"); break
            except OSError:
                assert self.process.poll() is None, "it ended"
                time.sleep(0.1)

    def ask(self, path, body, kind="application/json"):
        return urllib.request.urlopen(urllib.request.Request(f"http://{self.address}/v1/audio/{path}", body, {"content-type": kind}), timeout=600)

    def say(self, model, text, **more):
        return self.ask("speech", json.dumps({"model": model, "input": text, "response_format": "wav", **more}).encode())

    def write_down(self, model, sound, **more):
        mark = uuid.uuid4().hex
        fields = {"model": model, "response_format": "verbose_json", "temperature": "0", "language": "en", **more}
        body = b"".join(f'--{mark}\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode() for name, value in fields.items())
        body += f'--{mark}\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'.encode() + sound + f"\r\n--{mark}--\r\n".encode()
        return json.loads(self.ask("transcriptions", body, f"multipart/form-data; boundary={mark}").read())

    def close(self):
        self.process.terminate(); self.process.wait(60)


def named(model):
    """What the engine calls a model of this place."""
    path = Path(model).resolve()
    return path.name if path.is_dir() or path.suffix == ".onnx" else path.stem


def spent(process):
    """Processor seconds of a process so far."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wrong(said, heard):
    """Words put in, left out or put in another's place."""
    row = list(range(len(heard) + 1))
    for i, word in enumerate(said, 1):
        last, row[0] = row[0], i
        for j, other in enumerate(heard, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (word != other))
    return row[-1]


def round_trip(args, server):
    import importlib.resources
    from transformers.models.whisper.english_normalizer import EnglishTextNormalizer
    spellings = json.loads(importlib.resources.files("whisper_normalizer").joinpath("normalizers/english.json").read_text())
    words = lambda text, plain=EnglishTextNormalizer(spellings): plain(text).split()
    errors, total = 0, 0
    for at, line in enumerate((HERE / "speech.txt").read_text().splitlines()):
        text, *ways = line.split("\t")
        sound = server.say(named(args.voice), text, **({"voice": args.name} if args.name else {})).read()
        if args.keep:
            Path(args.keep, f"{at:02}.wav").write_bytes(sound)
        heard = server.write_down(named(args.ears), sound)["text"]
        said = min([text, *ways], key=lambda way: wrong(words(way), words(heard)) / len(words(way)))
        count = wrong(words(said), words(heard))
        errors, total = errors + count, total + len(words(said))
        if count:
            print(f"{count:3} {' '.join(words(said))}\n    {' '.join(words(heard))}", flush=True)
    print(f"{errors} of {total} words wrong: {errors / total:.1%}")


class Other:
    """A program that does its work once for each line it reads, and writes how many seconds that took and what came of it."""

    def __init__(self, *command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def once(self):
        before = spent(self.process)
        self.process.stdin.write("\n"); self.process.stdin.flush()
        seconds, _, self.text = self.process.stdout.readline().partition(" ")
        return spent(self.process) - before if args.cpu else float(seconds)

    def close(self):
        self.process.stdin.close(); self.process.wait(60)


FASTER = """
import sys, time
from faster_whisper import WhisperModel
model = WhisperModel(sys.argv[1], device="cpu", compute_type="int8", cpu_threads=int(sys.argv[2]))
for _ in sys.stdin:
    start = time.perf_counter()
    segments, _ = model.transcribe(sys.argv[3], beam_size=1, temperature=0, language="en", condition_on_previous_text=False)
    text = "".join(segment.text for segment in segments)
    print(time.perf_counter() - start, text, flush=True)
"""
ONNX = """
import json, sys, time
import numpy as np, onnxruntime
file, threads, ids, voice = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4]
options = onnxruntime.SessionOptions(); options.intra_op_num_threads = threads; options.inter_op_num_threads = 1
options.add_session_config_entry("session.intra_op.allow_spinning", "0")
session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
names = [given.name for given in session.get_inputs()]
if "style" in names:
    style = np.fromfile(voice, "<f4").reshape(-1, 256)[len(ids) - 3][None]
    given = dict(zip(names, [np.array([ids], "<i8"), style, np.ones(1, "<f4")]))
else:
    given = {"input": np.array([ids], "<i8"), "input_lengths": np.array([len(ids)], "<i8"), "scales": np.array([0.667, 1, 0.8], "<f4")}
for _ in sys.stdin:
    start = time.perf_counter()
    sound = session.run(None, given)[0]
    print(time.perf_counter() - start, sound.size, flush=True)
"""


def timed(work, server=None):
    clock = (lambda: spent(server.process)) if server and args.cpu else time.perf_counter
    start = clock(); work()
    return clock() - start


def in_turns(name, rounds, ours, theirs, unit=1.0):
    """Medians of both, and of theirs over ours; who is first changes."""
    pairs = []
    ours(), theirs()
    for turn in range(rounds):
        if turn % 2:
            b = theirs(); a = ours()
        else:
            a = ours(); b = theirs()
        pairs.append((a / unit, b / unit))
    ratios = sorted(b / a for a, b in pairs)
    a, b = (statistics.median(side) for side in zip(*pairs))
    print(f"{name}: ours {a:.3f}, theirs {b:.3f}, {statistics.median(ratios):.2f} x ({ratios[0]:.2f}-{ratios[-1]:.2f})", flush=True)


def seconds_of(sound):
    return (len(sound) - 44) / 2 / int.from_bytes(sound[24:28], "little")


def time_ears(args):
    server, ears = Server(args, args.ears), named(args.ears)
    try:
        for file in args.sound:
            sound = Path(file).read_bytes()
            hear = lambda: timed(lambda: server.write_down(ears, sound), server)
            name = f"{ears}, {Path(file).name} ({seconds_of(sound):.1f} s)"
            if args.faster_whisper:
                other = Other(sys.executable, "-c", FASTER, args.ears, str(args.threads), file)
                in_turns(f"{name}, faster-whisper int8", args.rounds, hear, other.once); other.close()
            if args.whisper_cpp:
                other = Other(args.whisper_cpp, args.ggml, str(args.threads), file)
                in_turns(f"{name}, whisper.cpp", args.rounds, hear, other.once); other.close()
        if args.cpu:
            return
        clip = Path(args.sound[0]).read_bytes()
        def eight():
            threads = [threading.Thread(target=server.write_down, args=(ears, clip)) for _ in range(8)]
            return timed(lambda: ([thread.start() for thread in threads], [thread.join() for thread in threads]))
        in_turns(f"{ears}, eight clips at once beside one after another", 3, eight, lambda: timed(lambda: [server.write_down(ears, clip) for _ in range(8)]))
        long = Path(args.sound[-1]).read_bytes()
        rate = int.from_bytes(long[24:28], "little") * 2
        ten = b"".join(long[44:] for _ in range(1 + 600 * rate // len(long)))[: 600 * rate]
        wav = lambda data: long[:4] + (36 + len(data)).to_bytes(4, "little") + long[8:40] + len(data).to_bytes(4, "little") + data
        short = wav(long[44 : 44 + 3 * rate])
        alone = statistics.median(timed(lambda: server.write_down(ears, short)) for _ in range(3))
        took = []
        busy = threading.Thread(target=lambda: took.append(timed(lambda: server.write_down(ears, wav(ten)))))
        busy.start(); time.sleep(1)
        beside = []
        while busy.is_alive() and len(beside) < 20:
            beside.append(timed(lambda: server.write_down(ears, short)))
        busy.join()
        print(f"{ears}, 3 s alone {alone:.2f} s, beside ten minutes {statistics.median(beside):.2f} (at most {max(beside):.2f}, {len(beside)} times), those in {took[0]:.1f} s", flush=True)
    finally:
        server.close()


# What Kokoro and Piper say of the fox, in signs that both have.
SIGNS = "ðə kwˈɪk bɹˈaʊn fˈɑks dʒˈʌmps ˌoʊvɚ ðə lˈeɪzi dˈɑɡ, ænd ɹˈʌnz ɐwˈeɪ æt hˈæf pˈæst θɹˈiː."


def time_voice(args):
    server, voice, path = Server(args, args.voice), named(args.voice), Path(args.voice).resolve()
    try:
        body = json.dumps({"model": voice, "phonemes": SIGNS, "response_format": "pcm", **({"voice": args.name} if args.name else {})}).encode()
        say = lambda: server.ask("speech", body).read()
        rate = 24_000 if path.is_dir() else json.loads(Path(f"{path}.json").read_text())["audio"]["sample_rate"]
        length = len(say()) / 2 / rate
        print(f"{voice}: {length:.2f} s of sound")
        if args.onnx:
            if path.is_dir():
                vocab = json.loads((path / "config.json").read_text())["vocab"]
                ids, style = [0, *[vocab[sign] for sign in SIGNS if sign in vocab], 0], f"{path}/voices/{args.name or 'af_heart'}.bin"
            else:
                vocab = json.loads(Path(f"{path}.json").read_text())["phoneme_id_map"]
                ids, style = [*vocab["^"], 0, *[id for sign in SIGNS if sign in vocab for id in (*vocab[sign], 0)], *vocab["$"]], ""
            other = Other(sys.executable, "-c", ONNX, args.onnx, str(args.threads), json.dumps(ids), style)
            in_turns(f"{voice}, seconds for one of sound, onnxruntime of {Path(args.onnx).name}", args.rounds, lambda: timed(say, server), other.once, length)
            print(f"    theirs is {int(other.text) / rate:.2f} s of sound"); other.close()
        if args.cpu:
            return
        text = " ".join((HERE / "speech.txt").read_text().split("\n")[:6]).split("\t")[0]
        firsts = []
        for _ in range(args.rounds):
            start = time.perf_counter()
            answer = server.ask("speech", json.dumps({"model": voice, "input": text, "response_format": "pcm"}).encode())
            answer.read(1); firsts.append(time.perf_counter() - start); answer.read()
        print(f"{voice}, first sound of six sentences: {statistics.median(firsts):.2f} s")
    finally:
        server.close()


if __name__ == "__main__":
    args = arguments()
    if args.round_trip:
        server = Server(args, args.voice, args.ears)
        try:
            round_trip(args, server)
        finally:
            server.close()
    if args.times and args.ears:
        time_ears(args)
    if args.times and args.voice:
        time_voice(args)
