"""OpenAI's client, with its types checked strictly, and requests as other programs send them."""
import base64
import contextlib
import http.client
import io
import json
import pathlib
import shutil
import socket
import tempfile
import threading
import unittest
import urllib.parse
import urllib.request
import warnings

try:
    import openai
except ImportError:
    print("skipped: there is no client of OpenAI; tools/setup --tests installs it")
    raise SystemExit(77)

from PIL import Image

import program
import serving
from api_runs import SIZE, STEPS, ApiRuns, mask
from tiny_run import pixels

EXTRA = {"num_inference_steps": STEPS, "seed": 7}
TEXT_SIZE = "96x64"
CLIPS = program.REPOSITORY / "examples/moving_shapes/model"


def client_of(server, **options):
    options = {"_strict_response_validation": True, **options}
    return openai.OpenAI(base_url=server.url + "/v1", api_key=server.key or "any", **options)


def frames_of(clip):
    image = Image.open(io.BytesIO(clip))
    frames = []
    for number in range(image.n_frames):
        image.seek(number)
        frames.append(image.convert("RGB").tobytes())
    return frames


class Cut(contextlib.AbstractContextManager):
    """Stands between client and server, and hangs up in place of the first replies.

    `waits`: the server's reply comes first, and is lost; otherwise the client hangs up as soon as the request is sent.
    """

    def __init__(self, server, cuts, waits):
        self.target = urllib.parse.urlsplit(server.url)
        self.cuts, self.waits = cuts, waits
        self.tries = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.key = ""
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def __exit__(self, *_):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join()

    def run(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            with client:
                self.answer(client)

    def answer(self, client):
        request = b""
        while b"\r\n\r\n" not in request:
            request += client.recv(65536)
        head, body = request.split(b"\r\n\r\n", 1)
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        while len(body) < int(fields[b"content-length"]):
            body += client.recv(65536)
        self.tries.append(int(fields[b"x-stainless-retry-count"]))
        head = b"\r\n".join(b"Connection: close" if line.lower().startswith(b"connection:") else line
                            for line in head.split(b"\r\n"))
        with socket.create_connection((self.target.hostname, self.target.port)) as server:
            server.sendall(head.replace(self.url[7:].encode(), self.target.netloc.encode()) + b"\r\n\r\n" + body)
            if len(self.tries) > self.cuts:
                while part := server.recv(65536):
                    client.sendall(part)
            elif self.waits:
                while server.recv(65536):
                    pass


class OpenAiTest(ApiRuns):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = client_of(cls.server)

    def refused(self, kind, call, **words):
        with self.assertRaises(kind) as refusal:
            call(**words)
        return refusal.exception

    def test_the_model_is_listed(self):
        self.assertEqual([model.id for model in self.client.models.list()], ["tiny"])
        self.assertEqual(self.client.models.retrieve("tiny").owned_by, "qwen_image")
        self.assertEqual(self.refused(openai.NotFoundError, self.client.models.retrieve, model="dall-e-3").code,
                         "model_not_found")

    def test_pictures_are_those_of_generate(self):
        reply = self.client.images.generate(model="tiny", prompt="a cat", n=2, size=TEXT_SIZE, quality="low", user="me",
                                            extra_body={**EXTRA, "negative_prompt": "blurry", "guidance_scale": 3})
        made = self.generated(prompt="a cat", negative_prompt="blurry", cfg_scale=3, seed=7, num_images=2)
        self.assertEqual([self.pixels_of(image.b64_json) for image in reply.data], made)
        self.assertEqual([image.seed for image in reply.data], [7, 8])
        self.assertEqual((reply.size, reply.output_format, reply.background, reply.quality, reply.safety_identifier),
                         (TEXT_SIZE, "png", "opaque", "low", "me"))
        self.assertIsNone(reply.usage)

    def test_a_list_of_seeds_and_a_lora(self):
        reply = self.client.images.generate(
            prompt="a cat", size=TEXT_SIZE, n=2,
            extra_body={**EXTRA, "seed": [9, 4], "lora": [{"name": "style", "strength": 0.5}]})
        for image, seed in zip(reply.data, (9, 4), strict=True):
            self.assertEqual([self.pixels_of(image.b64_json)],
                             self.generated(prompt="a cat", seed=seed, lora=f"{self.loras / 'style.safetensors'}:0.5"))
        self.assertNotEqual([self.pixels_of(reply.data[0].b64_json)], self.generated(prompt="a cat", seed=9))

    def test_several_loras_of_one_request(self):
        shutil.copy(self.loras / "style.safetensors", self.loras / "second.safetensors")
        self.server.ask("POST", "/v1/loras", {"name": "more", "file": "second"})
        self.addCleanup(self.server.ask, "DELETE", "/v1/loras/more")
        reply = self.client.images.generate(
            prompt="a cat", size=TEXT_SIZE,
            extra_body={**EXTRA, "lora": [{"name": "style", "strength": 0.5}, {"name": "more", "strength": 0.25}]})
        jobs = self.dir / "jobs.jsonl"
        jobs.write_text(json.dumps({"prompt": "a cat", "output": "both.png",
                                    "loras": [{"name": "style", "strength": 0.5}, {"name": "second", "strength": 0.25}]}))
        program.run_line(program.command("generate", **self.on_model, **SIZE, num_inference_steps=STEPS, seed=7,
                                         prompts_file=jobs, lora_dir=self.loras), code=0, cwd=self.dir)
        self.assertEqual(self.pixels_of(reply.data[0].b64_json), pixels(self.dir / "both.png"))

    def test_pictures_by_their_address_and_as_jpeg(self):
        reply = self.client.images.generate(prompt="a cat", size=TEXT_SIZE, response_format="url", output_format="jpeg",
                                            output_compression=80, extra_body=EXTRA)
        self.assertTrue(reply.data[0].url.startswith(self.server.url + "/v1/jobs/"))
        with urllib.request.urlopen(reply.data[0].url) as file:
            self.assertEqual(file.headers["Content-Type"], "image/jpeg")
            self.assertEqual(Image.open(file).size, (96, 64))

    def test_a_stream_has_previews_and_the_picture(self):
        events = list(self.client.images.generate(prompt="a cat", size=TEXT_SIZE, stream=True, partial_images=2,
                                                  extra_body={**EXTRA, "num_inference_steps": 12}))
        self.assertEqual(events[-1].type, "image_generation.completed")
        self.assertEqual([self.pixels_of(events[-1].b64_json)],
                         self.generated(prompt="a cat", seed=7, num_inference_steps=12))
        partials = events[:-1]
        self.assertTrue(partials)
        for index, partial in enumerate(partials):
            self.assertEqual((partial.type, partial.partial_image_index), ("image_generation.partial_image", index))
            image = Image.open(io.BytesIO(base64.b64decode(partial.b64_json)))
            self.assertEqual(image.format.lower(), partial.output_format)
        whole = list(self.client.images.generate(prompt="a cat", size=TEXT_SIZE, stream=True, n=2, extra_body=EXTRA))
        self.assertEqual([self.pixels_of(event.b64_json) for event in whole],
                         self.generated(prompt="a cat", seed=7, num_images=2))

    def test_an_edit_begins_from_the_picture(self):
        extra = {**EXTRA, "denoising_strength": 0.7}
        made = self.generated(prompt="a dog", seed=7, input_image=self.picture, denoising_strength=0.7)
        one = self.client.images.edit(image=self.picture, prompt="a dog", size=TEXT_SIZE, extra_body=extra)
        self.assertEqual([self.pixels_of(one.data[0].b64_json)], made)
        raw = self.client.images.edit(image=[self.picture.read_bytes()], prompt="a dog", size=TEXT_SIZE, extra_body=extra,
                                      input_fidelity="high")
        self.assertEqual([self.pixels_of(raw.data[0].b64_json)], made)
        events = list(self.client.images.edit(image=("picture.png", self.picture.read_bytes()), prompt="a dog", size=TEXT_SIZE,
                                              stream=True, partial_images=1, extra_body=extra))
        self.assertEqual({event.type for event in events}, {"image_edit.partial_image", "image_edit.completed"})
        self.assertEqual([self.pixels_of(events[-1].b64_json)], made)

    def test_an_edit_where_the_mask_is_transparent(self):
        shown = self.dir / "mask.png"
        shown.write_bytes(mask(0, 255))
        made = self.generated(prompt="a dog", seed=7, input_image=self.picture, inpaint_mask=shown, denoising_strength=1)
        edited = self.client.images.edit(image=self.picture, mask=mask(255, 0, transparent=True), prompt="a dog",
                                         size=TEXT_SIZE, extra_body=EXTRA)
        self.assertEqual([self.pixels_of(edited.data[0].b64_json)], made)

    def test_a_lora_of_a_form_is_a_text_of_json(self):
        edit = lambda lora: self.client.images.edit(
            image=self.picture, prompt="a dog", size=TEXT_SIZE,
            extra_body={**EXTRA, "denoising_strength": 0.7, "lora": lora})
        edited = edit(json.dumps([{"name": "style", "strength": 0.5}]))
        self.assertEqual([self.pixels_of(edited.data[0].b64_json)],
                         self.generated(prompt="a dog", seed=7, input_image=self.picture, denoising_strength=0.7,
                                        lora=f"{self.loras / 'style.safetensors'}:0.5"))
        with self.assertRaises(openai.BadRequestError) as refusal:
            edit([{"name": "style", "strength": 0.5}])
        self.assertIn("send lora as a text of JSON", str(refusal.exception))

    def test_mistakes_name_their_field(self):
        generate = lambda **words: self.client.images.generate(**{"prompt": "a cat", "size": TEXT_SIZE, **words})
        for words, field, said in (
                (dict(extra_body={"num_inference_step": 3}), "num_inference_step", 'did you mean "num_inference_steps"'),
                (dict(size="100x64"), "width", "100"),
                (dict(output_format="webp"), "output_format", "use png or jpeg"),
                (dict(background="transparent"), "background", "opaque"),
                (dict(extra_body={"lora": [{"name": "stile"}]}), "lora", 'did you mean "style"'),
                (dict(extra_body={"input_image": "/etc/passwd"}), "input_image", "not a PNG"),
                (dict(extra_body={"input_image": self.server.url}), "input_image", "no address is fetched"),
                (dict(extra_body={"num_inference_steps": -1}), "num_inference_steps", "below 1"),
                (dict(extra_body={"flow_shift": -1}), "flow_shift", "not above 0"),
                (dict(extra_body={"sigmas": [0.5, 1]}), "sigmas", "out of order"),
                (dict(extra_body={"schedule": "lightnin"}), "schedule", "did you mean lightning?"),
                (dict(n=0), "num_images", "0")):
            with self.subTest(field):
                error = self.refused(openai.BadRequestError, generate, **words)
                self.assertEqual((error.param, error.type), (field, "invalid_request_error"))
                self.assertIn(said, error.message)
        error = self.refused(openai.NotFoundError, generate, model="gpt-image-2")
        self.assertIn('"tiny" is', error.message)
        error = self.refused(openai.NotFoundError, self.client.images.create_variation, image=self.picture)
        self.assertEqual(error.code, "not_found")

    def test_a_client_that_hangs_up_ends_its_job(self):
        target = urllib.parse.urlsplit(self.server.url)
        line = http.client.HTTPConnection(target.hostname, target.port)
        body = json.dumps({"prompt": "left alone", "size": TEXT_SIZE, "num_inference_steps": 1000})
        line.request("POST", "/v1/images/generations", body, {"Content-Type": "application/json"})
        asked = lambda: [job for job in self.jobs(api="openai") if job["settings"]["prompt"] == "left alone"]
        job = self.server.wait_for(asked)[0]["id"]
        self.server.wait_for(lambda: self.server.ask("GET", f"/v1/jobs/{job}")["step"] > 0)
        line.close()
        self.assertEqual(self.server.finished(job)["state"], "cancelled")

    def test_a_picture_that_is_asked_for_again_is_made_once(self):
        for waits in (False, True):
            before = len(self.jobs(api="openai", state="done"))
            with Cut(self.server, cuts=2, waits=waits) as cut:
                client_of(cut).images.generate(prompt=f"again {waits}", size=TEXT_SIZE, extra_body=EXTRA)
                self.assertEqual(cut.tries, [0, 1, 2])
            self.server.wait_for(lambda: not self.jobs(api="openai", state="running"))
            self.assertEqual(len(self.jobs(api="openai", state="done")), before + 1)

    def test_a_full_line_makes_clients_try_again(self):
        with self.serve(max_queue=1) as small:
            client = client_of(small, max_retries=0)
            long = {"prompt": "a cat", "width": 96, "height": 64, "num_inference_steps": 1000}
            runs = small.ask("POST", "/v1/jobs", long)["id"]
            small.wait_for(lambda: small.ask("GET", f"/v1/jobs/{runs}")["state"] == "running")
            waits = small.ask("POST", "/v1/jobs", long)["id"]
            error = self.refused(openai.RateLimitError, client.images.generate, prompt="a cat")
            self.assertGreater(int(error.response.headers["retry-after"]), 0)
            self.assertEqual(error.code, "rate_limit_exceeded")
            self.assertEqual(len(small.ask("GET", "/v1/jobs")["jobs"]), 2)
            for job in (waits, runs):
                small.ask("POST", f"/v1/jobs/{job}/cancel")

    def test_a_key_is_asked_for(self):
        with self.serve(key="secret") as locked:
            self.assertEqual([model.id for model in client_of(locked).models.list()], ["tiny"])
            stranger = openai.OpenAI(base_url=locked.url + "/v1", api_key="guess")
            self.assertEqual(self.refused(openai.AuthenticationError, stranger.models.list).code, "invalid_api_key")

    def test_requests_of_open_webui(self):
        """As its routers/images.py sends them with engine "openai": generations in JSON, edits as a form of texts."""
        asked = {"model": "tiny", "prompt": "a cat", "n": 1, "size": TEXT_SIZE, "response_format": "b64_json", **EXTRA}
        reply = self.server.ask("POST", "/v1/images/generations?api-version=2025-04-01", asked)
        self.assertEqual([self.pixels_of(reply["data"][0]["b64_json"])], self.generated(prompt="a cat", seed=7))

        form = {"model": "tiny", "prompt": "a dog", "n": "1", "size": TEXT_SIZE, "response_format": "b64_json", "seed": "7",
                "num_inference_steps": str(STEPS), "denoising_strength": "0.7"}
        for name in ("image", "image[]"):
            parts = [f'--b\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'.encode()
                     for key, value in form.items()]
            parts.append(f'--b\r\nContent-Type: image/png\r\nContent-Disposition: form-data; name="{name}"; '
                         f'filename="0c.png"\r\n\r\n'.encode() + self.picture.read_bytes() + b"\r\n--b--\r\n")
            request = urllib.request.Request(self.server.url + "/v1/images/edits", b"".join(parts),
                                             {"Content-Type": "multipart/form-data; boundary=b"})
            with urllib.request.urlopen(request) as answer:
                edited = json.load(answer)
            self.assertEqual([self.pixels_of(edited["data"][0]["b64_json"])],
                             self.generated(prompt="a dog", seed=7, input_image=self.picture, denoising_strength=0.7))

    def test_a_model_of_pictures_makes_no_clips(self):
        error = self.refused(openai.BadRequestError, self.client.videos.create, prompt="a cat")
        self.assertIn("makes pictures", error.message)
        self.assertEqual(list(self.client.videos.list()), [])


class VideosTest(unittest.TestCase):
    """On the model of clips of examples/moving_shapes."""

    EXTRA = {"num_inference_steps": 2, "seed": 7, "output_format": "webp", "negative_prompt": " "}

    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(
            serving.Served(CLIPS, plugin="wan", device="cpu", threads=1, served_name="clips", max_steps=1000))
        # Its types know the sizes of one model alone, so they are not held.
        cls.client = client_of(cls.server, _strict_response_validation=False)

    def setUp(self):
        warnings.simplefilter("ignore", DeprecationWarning)
        for video in self.client.videos.list():
            self.client.videos.delete(video.id)

    def test_a_clip_is_made_told_and_forgotten(self):
        video = self.client.videos.create_and_poll(model="clips", prompt="a red circle", seconds="1", size="64x64",
                                                   extra_body=self.EXTRA)
        self.assertEqual((video.status, video.progress, video.seconds, video.size, video.model, video.object, video.prompt),
                         ("completed", 100, "1", "64x64", "clips", "video", "a red circle"))
        self.assertGreaterEqual(video.completed_at, video.created_at)
        content = self.client.videos.download_content(video.id).read()
        clip = Image.open(io.BytesIO(content))
        self.assertEqual((clip.format, clip.n_frames, clip.size), ("WEBP", 17, (64, 64)))
        thumbnail = Image.open(io.BytesIO(self.client.videos.download_content(video.id, variant="thumbnail").read()))
        self.assertEqual((thumbnail.format, thumbnail.size), ("JPEG", (64, 64)))
        with self.assertRaises(openai.BadRequestError):
            self.client.videos.download_content(video.id, variant="spritesheet")
        deleted = self.client.videos.delete(video.id)
        self.assertIs(deleted.deleted, True)
        self.assertEqual((deleted.id, deleted.object), (video.id, "video.deleted"))
        with self.assertRaises(openai.NotFoundError):
            self.client.videos.retrieve(video.id)

    def test_a_clip_is_that_of_generate(self):
        video = self.client.videos.create_and_poll(prompt="a red circle", seconds="1", size="64x64", extra_body=self.EXTRA)
        with tempfile.TemporaryDirectory() as folder:
            made = pathlib.Path(folder) / "clip.webp"
            program.run_line(program.command(
                "generate", plugin="wan", model_paths=json.dumps([str(CLIPS)]), device="cpu", threads=1, seed=7,
                prompt="a red circle", negative_prompt=" ", num_inference_steps=2, num_frames=17, height=64, width=64,
                output=made), code=0)
            self.assertEqual(frames_of(self.client.videos.download_content(video.id).read()), frames_of(made.read_bytes()))

    def test_clips_are_listed_page_by_page(self):
        ids = [self.client.videos.create(prompt=f"clip {i}", seconds="1", size="64x64", extra_body=self.EXTRA).id
               for i in range(3)]
        self.assertEqual([video.id for video in self.client.videos.list(limit=2)], ids[::-1])
        self.assertEqual([video.id for video in self.client.videos.list(order="asc", limit=1)], ids)
        page = self.client.videos.list(limit=2)
        self.assertEqual((page.has_more, page.last_id, len(page.data)), (True, ids[1], 2))

    def test_a_clip_that_is_asked_for_again_is_made_once(self):
        with Cut(self.server, cuts=2, waits=True) as cut:
            video = client_of(cut, _strict_response_validation=False).videos.create(
                prompt="a red circle", seconds="1", size="64x64", extra_body=self.EXTRA)
            self.assertEqual(cut.tries, [0, 1, 2])
        self.assertEqual([other.id for other in self.client.videos.list()], [video.id])

    def test_a_clip_that_is_not_there_yet(self):
        create = self.client.videos.with_raw_response.create
        reply = create(prompt="long", size="64x64", extra_body={**self.EXTRA, "num_inference_steps": 1000})
        video = reply.parse()
        self.assertIn(video.status, ("queued", "in_progress"))
        self.assertGreater(int(reply.headers["openai-poll-after-ms"]), 0)
        with self.assertRaises(openai.BadRequestError):
            self.client.videos.download_content(video.id)
        self.server.ask("POST", f"/v1/jobs/{video.id}/cancel")
        self.assertEqual(self.server.finished(video.id)["state"], "cancelled")
        ended = self.client.videos.retrieve(video.id)
        self.assertEqual((ended.status, ended.error.code), ("failed", "cancelled"))

    def test_a_picture_of_a_model_of_clips(self):
        reply = client_of(self.server).images.generate(prompt="a red circle", size="64x64",
                                                       extra_body={"num_inference_steps": 2, "negative_prompt": " "})
        self.assertEqual(Image.open(io.BytesIO(base64.b64decode(reply.data[0].b64_json))).size, (64, 64))

    def test_mistakes_of_clips(self):
        for words, field in ((dict(seconds="0"), "seconds"), (dict(extra_body={"frames": 9}), "frames"),
                             (dict(input_reference=("a.png", b"picture", "image/png")), "input_reference")):
            with self.assertRaises(openai.BadRequestError) as refusal:
                self.client.videos.create(**{"prompt": "a", "size": "64x64", **words})
            self.assertEqual(refusal.exception.param, field)


if __name__ == "__main__":
    unittest.main()
