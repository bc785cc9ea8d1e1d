"""The official openai package, unmodified, against `engine-gateway` in front of ears of a few lines: every shape of an answer, files large and
small, and what is refused."""
import sys

import httpx, openai

from engine import check, run_checks
from scripted_engine import Gateway, Scripted
from stubs import pb, speech, speech_grpc

WORDS = [" Guten", " Tag.", " Auf", " Wiedersehen."]
TEXT = "Guten Tag. Auf Wiedersehen."


class Hears(Scripted):
    capabilities = [pb.CAPABILITY_TRANSCRIBE]

    def add_to(self, server):
        speech_grpc.add_SpeechServicer_to_server(Ears(), server)


class Ears(speech_grpc.SpeechServicer):
    seen = []

    def Transcribe(self, requests, context):
        config = next(requests).config
        yield speech.TranscribeEvent(started=speech.TranscribeStarted(request_id=config.request_id, model="scripted", language="de", language_probability=0.9))
        sound = b"".join(request.data for request in requests)
        Ears.seen.append((config, len(sound)))
        if not sound:
            context.abort(__import__("grpc").StatusCode.INVALID_ARGUMENT, "data: is empty; send a sound file")
        for index in range(2):
            words = WORDS[2 * index : 2 * index + 2]
            yield speech.TranscribeEvent(delta=speech.TranscribeDelta(text="".join(words)))
            segment = speech.TranscriptSegment(index=index, start_s=index * 2, end_s=index * 2 + 1.5, text="".join(words), average_logprob=-0.3, compression_ratio=1.1)
            segment.tokens.extend(speech.TranscriptToken(token_id=i, token=word.encode(), logprob=-0.25) for i, word in enumerate(words))
            if config.word_timestamps:
                segment.words.extend(speech.TranscriptWord(word=word, start_s=index * 2 + i / 2, end_s=index * 2 + i / 2 + 0.5, probability=0.9) for i, word in enumerate(words))
            yield speech.TranscribeEvent(segment=segment)
        yield speech.TranscribeEvent(finished=speech.TranscribeFinished(duration_s=4, text=TEXT, prompt_tokens=3, completion_tokens=4))


def ask(client, file=("a.wav", b"RIFF a sound"), **kwargs):
    return client.audio.transcriptions.create(model="scripted", file=file, **kwargs)


def refused(param, call):
    try:
        call()
    except openai.BadRequestError as error:
        assert error.param == param, error
        return
    raise AssertionError(f"{param} was taken")


@check
def json_has_text_and_usage(client):
    answer = ask(client)
    assert type(answer).__name__ == "Transcription" and answer.text == TEXT, answer
    assert answer.usage.type == "duration" and answer.usage.seconds == 4, answer
    assert answer.logprobs is None


@check
def verbose_has_segments_and_words(client):
    answer = ask(client, response_format="verbose_json", timestamp_granularities=["word", "segment"], language="de", prompt="Namen", temperature=0.5)
    assert type(answer).__name__ == "TranscriptionVerbose" and answer.language == "german" and answer.duration == 4, answer
    assert [segment.text for segment in answer.segments] == [" Guten Tag.", " Auf Wiedersehen."], answer
    assert (answer.segments[1].id, answer.segments[1].start, answer.segments[1].end) == (1, 2, 3.5)
    assert [(word.word, word.start, word.end) for word in answer.words][-1] == ("Wiedersehen.", 2.5, 3.0), answer.words
    config, size = Ears.seen[-1]
    assert (config.language, config.prompt, list(config.temperatures), config.file_name, size) == ("de", "Namen", [0.5], "a.wav", 12), config
    assert ask(client, response_format="verbose_json", timestamp_granularities=["word"]).segments is None


@check
def subtitles_and_text_are_texts(client):
    assert ask(client, response_format="srt").startswith("1\n00:00:00,000 --> 00:00:01,500\nGuten Tag.\n\n2\n")
    assert ask(client, response_format="vtt").startswith("WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nGuten Tag.\n\n")
    assert ask(client, response_format="text") == TEXT + "\n"


@check
def log_probabilities_come_where_they_are_asked_for(client):
    logprobs = ask(client, include=["logprobs"]).logprobs
    assert [(one.token, one.logprob, bytes(map(int, one.bytes))) for one in logprobs] == [(word, -0.25, word.encode()) for word in WORDS], logprobs


@check
def streams_are_events(client):
    events = list(ask(client, stream=True, include=["logprobs"]))
    assert [event.type for event in events] == ["transcript.text.delta", "transcript.text.delta", "transcript.text.done"], events
    assert "".join(event.delta for event in events[:-1]) == events[-1].text == TEXT
    assert events[-1].usage.total_tokens == 7 and len(events[-1].logprobs) == 4, events[-1]


@check
def translations_are_english(client):
    answer = client.audio.translations.create(model="scripted", file=("a.mp3", b"a sound"), response_format="verbose_json")
    assert answer.text == TEXT and answer.language == "english" and len(answer.segments) == 2, answer
    assert Ears.seen[-1][0].translate
    assert client.audio.translations.create(model="scripted", file=("a.mp3", b"a sound")).text == TEXT


@check
def large_files_go_through(client):
    big = bytes(range(256)) * 90_000
    for order in (["model", "file"], ["file", "model"]):
        parts = {"model": (None, "scripted"), "file": ("b.flac", big)}
        answer = httpx.post(f"{client.base_url}audio/transcriptions", files=[(name, parts[name]) for name in order], timeout=60)
        assert answer.status_code == 200 and Ears.seen[-1][1] == len(big), answer.text
    try:
        ask(client, file=("c.wav", bytes(30 << 20)))
    except openai.APIStatusError as error:
        assert error.status_code == 413, error
    else:
        raise AssertionError("30 MiB were taken")


@check
def what_cannot_be_honoured_is_refused(client):
    refused("file", lambda: ask(client, file=("a.wav", b"")))
    refused("timestamp_granularities", lambda: ask(client, timestamp_granularities=["word"]))
    refused("response_format", lambda: ask(client, response_format="diarized_json"))
    refused("temperature", lambda: ask(client, temperature=2))
    refused("colour", lambda: ask(client, extra_body={"colour": "red"}))
    refused("stream", lambda: list(ask(client, stream=True, response_format="srt")))


if __name__ == "__main__":
    with Gateway(Hears()) as gateway:
        sys.exit(run_checks(openai.OpenAI(base_url=f"http://{gateway.http}/v1", api_key="none", max_retries=0, timeout=60)))
