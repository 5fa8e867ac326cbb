"""Reads and writes sounds: values against NumPy's, rates by what a sine becomes.

usage: sound_test.py SOUND_TOOL VIDEO_LIBRARY|-
"""
import json
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np
from PIL import Image
from sounds import sine, wav

CLIPS = Path(__file__).parent / "clips"
TOOL, LIBRARY = sys.argv.pop(1), sys.argv.pop(1)


@unittest.skipIf(LIBRARY == "-", "built without FFmpeg")
class Sounds(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory(prefix="atelier_sounds_")
        cls.addClassCleanup(scratch.cleanup)
        cls.folder = Path(scratch.name)
        cls.tool = subprocess.Popen([TOOL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    @classmethod
    def tearDownClass(cls):
        _, errors = cls.tool.communicate()
        assert cls.tool.returncode == 0 and errors == "", (cls.tool.returncode, errors)

    def ask(self, *words):
        self.tool.stdin.write("\t".join(map(str, words)) + "\n")
        self.tool.stdin.flush()
        line = self.tool.stdout.readline()
        self.assertNotEqual("", line, f"the tool died on {words}")
        return json.loads(line)

    def write(self, data, name="a.wav"):
        path = self.folder / name
        path.write_bytes(data)
        return path

    def read(self, path, channels=1, rate=16000, first=0, count="all"):
        answer = self.ask("read", path, channels, rate, first, count, self.folder / "out")
        self.assertIn("ok", answer, answer)
        self.assertEqual([channels, rate], answer["ok"][:2])
        return np.fromfile(self.folder / "out", np.float32).reshape(channels, answer["ok"][2])

    def probe(self, path):
        answer = self.ask("probe", path)
        self.assertIn("ok", answer, answer)
        return answer["ok"]

    def refused(self, code, path, *says, asks=("probe", "read")):
        """Both the look at the header and the reading say it."""
        for command in asks:
            answer = self.ask(command, path, 1, 16000, 0, "all", self.folder / "out")
            self.assertEqual(code, answer.get("code"), answer)
            for text in (str(path), *says):
                self.assertIn(text, answer["error"])

    def noise(self, channels, samples, seed=0):
        return np.random.default_rng(seed).uniform(-1, 1, (channels, samples))

    def test_values_of_all_widths_are_those_of_the_file(self):
        for bits in (8, 16, 24, 32):
            top = 2.0**(bits - 1)
            whole = np.clip(np.round(self.noise(1, 1000) * top), -top, top - 1)
            path = self.write(wav(whole / top, bits=bits))
            self.assertEqual(["wav", {8: "pcm_u8"}.get(bits, f"pcm_s{bits}le"), 1, 16000, 1000], self.probe(path))
            np.testing.assert_array_equal((whole / top).astype(np.float32), self.read(path))
        for bits in (32, 64):
            values = self.noise(1, 1000).astype(f"f{bits // 8}")
            np.testing.assert_array_equal(values.astype(np.float32), self.read(self.write(wav(values, bits=bits, is_float=True))))

    def test_one_channel_is_the_mean_of_those_of_the_file(self):
        for channels in (2, 3, 6):
            values = np.round(self.noise(channels, 500) * 2**15) / 2**15
            read = self.read(self.write(wav(values)))
            np.testing.assert_array_equal(np.clip(values, -1, 1 - 2.0**-15).mean(0).astype(np.float32), read[0])

    def test_two_channels_are_left_and_right_or_one_twice(self):
        values = np.round(self.noise(2, 500) * 2**14) / 2**15
        np.testing.assert_array_equal(values, self.read(self.write(wav(values)), channels=2))
        np.testing.assert_array_equal(values[[0, 0]], self.read(self.write(wav(values[0])), channels=2))
        front = np.concatenate([values / 4, np.zeros((4, 500))])
        left, right = self.read(self.write(wav(front)), channels=2)
        self.assertGreater(np.corrcoef(left, values[0])[0, 1], 0.999)
        self.assertGreater(np.corrcoef(right, values[1])[0, 1], 0.999)

    def test_a_sine_keeps_its_frequency_and_its_level_at_another_rate(self):
        for rate in (8000, 22050, 44100, 48000, 96000):
            path = self.write(wav(sine(440, 2, rate), rate, bits=32, is_float=True))
            self.assertEqual(2 * rate, self.probe(path)[4])
            read = self.read(path)[0]
            self.assertEqual(32000, read.size)
            wanted = sine(440, 2)
            np.testing.assert_allclose(wanted[500:-500], read[500:-500], atol=1e-3, err_msg=str(rate))
        # What the lower rate cannot hold is gone.
        high = self.write(wav(sine(20000, 1, 96000), 96000))
        self.assertLess(np.abs(self.read(high)[0][500:-500]).max(), 1e-3)

    def test_lengths_are_rounded_up_and_parts_are_parts(self):
        values = sine(300, 0.5001, 44100)
        path = self.write(wav(values, 44100))
        whole = self.read(path)
        self.assertEqual(-(-values.size * 16000 // 44100), whole.shape[1])
        np.testing.assert_array_equal(whole[:, 100:350], self.read(path, first=100, count=250))
        np.testing.assert_array_equal(whole[:, 100:], self.read(path, first=100, count=10**6))
        self.assertEqual(0, self.read(path, first=10**6).size)

    def test_silence_and_values_beyond_one(self):
        self.assertFalse(self.read(self.write(wav(np.zeros(700)))).any())
        loud = self.write(wav(np.array([0.5, 3.0, -2.0]), bits=32, is_float=True))
        np.testing.assert_array_equal([[0.5, 1, -1]], self.read(loud))
        lost = self.write(wav(np.array([0.5, np.nan, 0.0]), bits=32, is_float=True))
        self.refused("DATA_LOSS", lost, "values that are no numbers", asks=("read",))

    def test_sounds_of_videos_are_read(self):
        form, codec, channels, rate, samples = self.probe(CLIPS / "sound.mp4")
        self.assertEqual(("mp4", "aac"), (form, codec))
        read = self.read(CLIPS / "sound.mp4", rate=rate)
        self.assertAlmostEqual(samples, read.shape[1], delta=0.1 * rate)
        self.assertEqual(("mp4", "aac"), tuple(self.probe(CLIPS / "sound_alone.mp4")[:2]))

    def test_other_containers_are_told_by_content(self):
        values = np.round(self.noise(1, 300) * 2**15).clip(-2**15, 2**15 - 1)
        exponent = struct.pack(">H", 16383 + 13) + struct.pack(">Q", 16000 << 50)
        common = struct.pack(">hIh", 1, 300, 16) + exponent
        sound = struct.pack(">II", 0, 0) + values.astype(">i2").tobytes()
        body = b"AIFF" + b"COMM" + struct.pack(">I", len(common)) + common + b"SSND" + struct.pack(">I", len(sound)) + sound
        path = self.write(b"FORM" + struct.pack(">I", len(body)) + body, "a.wav")
        self.assertEqual(["aiff", "pcm_s16be", 1, 16000, 300], self.probe(path))
        np.testing.assert_array_equal((values / 2**15).astype(np.float32), self.read(path))

    def test_what_is_no_sound_is_named(self):
        Image.new("RGB", (4, 4)).save(self.folder / "a.png")
        self.refused("UNSUPPORTED", self.folder / "a.png", "an image, and no sound")
        self.refused("UNSUPPORTED", self.write(b"<html>none</html>", "page.mp3"), "a web page, and no sound")
        self.refused("UNSUPPORTED", self.write(b"just words", "text.wav"), "text, and no sound")
        self.refused("UNSUPPORTED", CLIPS / "plain.mp4", "holds no sound")
        self.refused("NOT_FOUND", self.folder / "absent.wav", "No such file")
        self.refused("INVALID_ARGUMENT", self.folder, "not a regular file")
        self.refused("DATA_LOSS", self.write(bytes(range(256)) * 20, "junk.wav"), "the sound cannot be opened")

    def test_damage_is_told(self):
        whole = wav(sine(440, 1))
        self.refused("DATA_LOSS", self.write(b"", "empty.wav"), "the file is empty")
        self.refused("DATA_LOSS", self.write(whole[:len(whole) // 2], "cut.wav"), "is cut short")
        self.refused("DATA_LOSS", self.write(wav(np.zeros(0)), "none.wav"))
        clip = (CLIPS / "sound.mp4").read_bytes()
        self.refused("DATA_LOSS", self.write(clip[:len(clip) * 2 // 3], "cut.mp4"), "cut")
        # A recorder that writes into a pipe does not know the length.
        piped = whole[:4] + b"\xff\xff\xff\xff" + whole[8:40] + b"\xff\xff\xff\xff" + whole[44:]
        self.assertEqual(16000, self.read(self.write(piped, "piped.wav")).shape[1])

    def test_a_sound_is_written_into_a_clip(self):
        for rate, kept in ((16000, 16000), (44100, 44100), (15360, 48000)):
            path = self.write(wav(np.stack([sine(440, 3, rate), sine(660, 3, rate)]), rate))
            out = self.folder / f"{rate}.mp4"
            self.assertIn("ok", self.ask("clip", path, 1.5, 8, out))
            form, codec, channels, at, samples = self.probe(out)
            self.assertEqual(("mp4", "aac", 2, kept), (form, codec, channels, at))
            self.assertAlmostEqual(1.5 * kept, samples, delta=2048)
            left, right = self.read(out, 2, kept)
            for values, hertz in ((left, 440), (right, 660)):
                values = values[kept // 4:kept // 4 + kept]
                spectrum = np.abs(np.fft.rfft(values * np.hanning(kept)))
                self.assertEqual(hertz, spectrum.argmax())
                self.assertAlmostEqual(0.5, np.sqrt(2) * values.std(), delta=0.02)
        # Formats without sound leave it out.
        self.assertIn("ok", self.ask("clip", path, 1.5, 8, self.folder / "a.webp"))
        self.refused("UNSUPPORTED", self.folder / "a.webp", "an image, and no sound")

    def test_other_programs_read_what_is_written(self):
        program = shutil.which("ffmpeg")
        if program is None:
            self.skipTest("FFmpeg's program is not installed")
        path = self.write(wav(self.noise(2, 9000) / 2, 44100))
        said = subprocess.run([program, "-v", "error", "-i", path, "-af", "pan=mono|c0=0.5*c0+0.5*c1,aresample=16000",
                               "-f", "f32le", "-"], capture_output=True, check=True)
        np.testing.assert_allclose(np.frombuffer(said.stdout, np.float32), self.read(path)[0], atol=1e-4)


if __name__ == "__main__":
    unittest.main()
