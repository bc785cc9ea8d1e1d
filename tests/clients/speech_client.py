"""The official openai package, unmodified, against `hanzo-engine serve` with a tiny Kokoro and a tiny VITS of random weights: every format, whole and as it
comes, events, voices, and what is refused; and `hanzo-engine say` into files of the same sound."""
import base64, json, os, shutil, subprocess, sys, tempfile

import httpx, openai

from engine import BINARY, ROOT, Engine, check, run_checks

PHONEMES = "hi, abide us!"
BEGINS = {"mp3": b"\xff", "opus": b"OggS", "flac": b"fLaC", "wav": b"RIFF", "pcm": b""}


def folder(parent):
    """The model's files as Kokoro's makers lay them out."""
    data, path = f"{ROOT}/crates/voice/testdata", f"{parent}/tiny-kokoro"
    os.makedirs(f"{path}/voices")
    shutil.copy(f"{data}/kokoro.json", f"{path}/config.json")
    shutil.copy(f"{data}/kokoro.pth", f"{path}/kokoro.pth")
    for voice in ["af_heart", "am_echo", "bm_george"]:
        shutil.copy(f"{data}/kokoro_voice.pt", f"{path}/voices/{voice}.pt")
    return path


def ask(client, **kwargs):
    kwargs = {"model": "tiny-kokoro", "voice": "alloy", "input": "x", **kwargs}
    if "phonemes" in (kwargs.get("extra_body") or {}):
        kwargs["input"] = openai.omit
    return client.audio.speech.create(**kwargs)


def said(client, response_format, **kwargs):
    return ask(client, response_format=response_format, extra_body={"phonemes": PHONEMES, **kwargs}).content


def refused(param, call):
    try:
        call()
    except openai.BadRequestError as error:
        assert error.param == param, error
        return
    raise AssertionError(f"{param} was taken")


@check
def every_format_is_written(client, _):
    files = {name: said(client, name) for name in BEGINS}
    for name, begins in BEGINS.items():
        assert files[name].startswith(begins) and len(files[name]) > 1_000, (name, len(files[name]))
    assert files["wav"][44:] == files["pcm"] == said(client, "pcm"), "the same text is the same sound"
    assert said(client, "pcm", seed=1) != files["pcm"]
    answer = ask(client, extra_body={"phonemes": PHONEMES})
    assert answer.response.headers["content-type"] == "audio/mpeg" and answer.content == files["mp3"]


@check
def text_is_read(client, _):
    # The tiny model lacks most signs, which are left out; what is said is not nothing.
    short, long = (len(ask(client, input=text, response_format="pcm").content) for text in ("At 7:15", "At 7:15, is it a bus or a hat? It is a hat."))
    assert 0 < short < long, (short, long)


@check
def sound_comes_as_it_is_made(client, _):
    text = "hi, abide us! " * 12
    with client.audio.speech.with_streaming_response.create(model="tiny-kokoro", voice="nova", input=openai.omit, response_format="pcm", extra_body={"phonemes": text}) as answer:
        pieces = [len(piece) for piece in answer.iter_bytes()]
    assert len(pieces) > 1 and sum(pieces) % 2 == 0, pieces
    body = {"model": "tiny-kokoro", "phonemes": PHONEMES, "response_format": "pcm", "stream_format": "sse"}
    with httpx.stream("POST", f"{client.base_url}audio/speech", json=body, timeout=60) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        events = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: ")]
    assert events[-1]["type"] == "speech.audio.done" and events[-1]["usage"]["input_tokens"] == len(PHONEMES), events[-1]
    sound = b"".join(base64.b64decode(event["audio"]) for event in events[:-1])
    assert sound == said(client, "pcm"), "events and the file are the same"


@check
def speed_and_voices_are_honoured(client, _):
    usual, fast, slow = (len(ask(client, speed=speed, response_format="pcm", extra_body={"phonemes": PHONEMES}).content) for speed in (1, 2, 0.5))
    assert fast < usual < slow, (fast, usual, slow)
    for voice in ["bm_george", "onyx", "af_heart:0.7+bm_george:0.3"]:
        assert ask(client, voice=voice, response_format="pcm", extra_body={"phonemes": PHONEMES}).content
    voices = httpx.get(f"{client.base_url}audio/voices?model=tiny-kokoro").json()
    assert [(voice["id"], voice["language"], voice["aliases"]) for voice in voices["voices"]] == [
        ("af_heart", "en-us", ["marin"]),
        ("am_echo", "en-us", ["echo"]),
        ("bm_george", "en-gb", ["ballad"]),
    ], voices


@check
def a_vits_speaks_too(client, _):
    say = lambda **kwargs: client.audio.speech.create(**{"model": "vits_many", "input": "Hi, abide us!", "voice": "0", "response_format": "wav", **kwargs}).content
    usual = say()
    assert usual[:4] == b"RIFF" and int.from_bytes(usual[24:28], "little") == 16_000 and usual == say(), len(usual)
    assert len(say(speed=0.5)) > len(usual) > len(say(speed=2)) and say(voice="2") != usual != say(voice="alloy", input="Us?")
    assert say(response_format="mp3").startswith(b"\xff")
    voices = httpx.get(f"{client.base_url}audio/voices?model=vits_many").json()["voices"]
    assert [voice["id"] for voice in voices] == ["0", "1", "2"], voices


@check
def what_cannot_be_honoured_is_refused(client, _):
    refused("voice", lambda: ask(client, voice="nobody"))
    refused("voice", lambda: ask(client, voice="af_heart:x"))
    refused("response_format", lambda: ask(client, response_format="aac"))
    refused("speed", lambda: ask(client, speed=4.5))
    refused("instructions", lambda: ask(client, instructions="Softly."))
    refused("input", lambda: ask(client, input=""))
    refused("input", lambda: ask(client, input="a" * 16_385))
    refused("phonemes", lambda: ask(client, extra_body={"phonemes": "ß"}))
    refused("language", lambda: ask(client, extra_body={"language": "xx"}))
    refused("pitch", lambda: ask(client, extra_body={"pitch": 2}))
    assert ask(client, instructions="").content


@check
def the_command_writes_the_same(client, model):
    wav = said(client, "wav")
    with tempfile.TemporaryDirectory() as out:
        say = [BINARY, "say", "-m", model, "--engine", "none", "--model-dir", f"{out}/store"]
        run = lambda *args: subprocess.run([*say, *args], capture_output=True, timeout=120)
        done = run("--phonemes", PHONEMES, "--voice", "alloy", "-o", f"{out}/a.wav")
        assert done.returncode == 0, done.stderr
        file = open(f"{out}/a.wav", "rb").read()
        assert file[44:] == wav[44:]
        assert int.from_bytes(file[4:8], "little") == len(file) - 8 and int.from_bytes(file[40:44], "little") == len(file) - 44, "lengths are said"
        assert run("--phonemes", PHONEMES, "--voice", "alloy", "--format", "pcm", "-o", "-").stdout == wav[44:]
        listed = run("--voices")
        assert b"bm_george" in listed.stdout and b"ballad" in listed.stdout, listed
        for args in [("-o", f"{out}/b.txt"), ("-o", f"{out}/b.mp3", "--voice", "nobody")]:
            done = run("hello", *args)
            assert done.returncode != 0 and b"error" in done.stderr and not os.path.exists(args[1]), done


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as parent:
        model = folder(parent)
        with Engine("--model", model, "--model", f"{ROOT}/crates/voice/testdata/vits_many") as engine:
            sys.exit(run_checks(openai.OpenAI(base_url=f"http://{engine.http}/v1", api_key="none", max_retries=0, timeout=60), model))
