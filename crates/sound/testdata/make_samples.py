"""Writes the sounds of this folder: a tone of 440 Hz that becomes one of 1000 Hz in the middle, in every container and codec
that is read, and some that are not. Needs `av` (PyAV, with FFmpeg's own libraries), `soundfile` and `numpy`."""

import av
import numpy as np
import soundfile

SECONDS = 0.5


def tone(rate, channels, seconds=SECONDS):
    t = np.arange(int(seconds * rate)) / rate
    wave = 0.4 * np.sin(2 * np.pi * np.where(t < seconds / 2, 440, 1000) * t)
    return np.tile(wave, (channels, 1))


def write(name, codec, rate=16000, channels=1, seconds=SECONDS, container=None, options=None, **settings):
    with av.open(name, "w", format=container, options=options or {}) as file:
        stream = file.add_stream(codec, rate=rate, layout="mono" if channels == 1 else "stereo")
        for key, value in settings.items():
            setattr(stream, key, value)
        samples = tone(rate, channels, seconds).astype(np.float32)
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples), format="fltp", layout=stream.layout.name)
        frame.sample_rate = rate
        resampler = av.AudioResampler(format=stream.format, layout=stream.layout, rate=rate, frame_size=stream.frame_size or 1024)
        for frame in resampler.resample(frame) + resampler.resample(None):
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))


WAVES = ["pcm_u8", "pcm_s16le", "pcm_s24le", "pcm_s32le", "pcm_f32le", "pcm_f64le", "pcm_mulaw", "pcm_alaw", "adpcm_ms", "adpcm_ima_wav"]
for codec in WAVES:
    write(f"{codec}.wav", codec, rate=8000)
write("stereo_48k.wav", "pcm_s16le", rate=48000, channels=2, seconds=0.25)
write("mono.mp3", "mp3", rate=16000, bit_rate=32000)
write("stereo_44k.mp3", "mp3", rate=44100, channels=2, bit_rate=128000)
write("mono.flac", "flac")
write("stereo_44k.flac", "flac", rate=44100, channels=2)
soundfile.write("vorbis.ogg", tone(16000, 2).T, 16000, format="OGG", subtype="VORBIS")
write("opus.ogg", "libopus", rate=48000, channels=2, bit_rate=64000)
write("speech.opus", "libopus", rate=16000, container="ogg", options={}, bit_rate=24000)
write("opus.webm", "libopus", rate=48000, bit_rate=32000)
with av.open("vorbis.ogg") as source, av.open("vorbis.webm", "w") as file:
    stream = file.add_stream_from_template(source.streams.audio[0])
    for packet in source.demux(source.streams.audio[0]):
        if packet.size:
            packet.stream = stream
            file.mux(packet)
write("aac.m4a", "aac", rate=44100, bit_rate=96000)
write("index_first.m4a", "aac", rate=16000, options={"movflags": "faststart"}, bit_rate=32000)
write("alac.m4a", "alac")
write("aac.aac", "aac", container="adts", bit_rate=32000)
write("pcm.aiff", "pcm_s16be", rate=8000)
write("ac3.mp4", "ac3", rate=48000, bit_rate=64000)

for name, codec in [("silent_film.mp4", "mpeg4"), ("silent_film.webm", "libvpx")]:
    with av.open(name, "w") as file:
        stream = file.add_stream(codec, rate=5)
        stream.width = stream.height = 32
        stream.pix_fmt = "yuv420p"
        for _ in range(2):
            file.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), format="rgb24")))
        file.mux(stream.encode(None))
