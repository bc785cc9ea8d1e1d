"""Writes a chirp at 22,050 Hz and the same one as soxr resamples it to 24,000 Hz, as raw i16.

    pip install numpy soxr
    python make_resample.py
"""

import pathlib

import numpy as np
import soxr

HERE = pathlib.Path(__file__).parent
GIVEN, WANTED, SECONDS = 22_050, 24_000, 0.4

t = np.arange(int(GIVEN * SECONDS)) / GIVEN
# 100 Hz to 9.5 kHz; Hann edges, so that both filters see silence around it.
phase = 2 * np.pi * (100 * t + (9_500 - 100) * t**2 / (2 * SECONDS))
edge = np.clip(np.minimum(t, SECONDS - t) / 0.04, 0, 1)
chirp = 0.8 * (0.5 - 0.5 * np.cos(np.pi * edge)) * np.sin(phase)
given = np.round(chirp * 32767).astype("<i2")
wanted = soxr.resample(given / 32767, GIVEN, WANTED, quality="VHQ")
given.tofile(HERE / "chirp_22050.pcm")
np.round(wanted * 32767).astype("<i2").tofile(HERE / "chirp_24000.pcm")
