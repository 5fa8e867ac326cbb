"""Sound files, as tests write them."""
import struct

import numpy as np


def wav(values, rate=16000, bits=16, is_float=False):
    """The bytes of a WAV file of values in [-1, 1], [channels, samples]."""
    values = np.atleast_2d(values)
    frames = values.T
    if is_float:
        data = frames.astype({32: "<f4", 64: "<f8"}[bits]).tobytes()
    elif bits == 8:
        data = np.clip(np.round(frames * 128) + 128, 0, 255).astype(np.uint8).tobytes()
    else:
        top = 2.0**(bits - 1)
        whole = np.clip(np.round(frames * top), -top, top - 1).astype("<i4")
        data = b"".join(struct.pack("<i", number)[:bits // 8] for number in whole.ravel().tolist())
    width = len(values) * bits // 8
    form = struct.pack("<HHIIHH", 3 if is_float else 1, len(values), rate, rate * width, width, bits)
    body = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


def sine(hertz, seconds, rate=16000, level=0.5):
    return level * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)
