"""`atelier serve` as its clients meet it: jobs, LoRAs, limits, and what becomes of jobs when the server ends."""
import base64
import json
import os
import re
import shutil
import signal
import stat
import threading
import unittest
import urllib.error
import urllib.request

import program
import serving
from tiny_run import FolderTest, pixels

SHAPES = program.REPOSITORY / "examples/shapes"
CLIPS = program.REPOSITORY / "examples/moving_shapes"
JOB = {"prompt": "a red circle on a white ground", "width": 64, "height": 64, "num_inference_steps": 2, "seed": 5}
LONG = JOB | {"width": 512, "height": 512, "num_inference_steps": 200}  # half a minute, where nobody cancels it
CLIP = {"prompt": "a red circle moves right on a white ground", "num_inference_steps": 2, "seed": 5, "format": "gif"}


def events(reply):
    """The events of a stream: their names and data."""
    name = None
    for line in reply:
        text = line.decode().rstrip("\n")
        if text.startswith("event: "):
            name = text.removeprefix("event: ")
        elif text.startswith("data: "):
            yield name, json.loads(text.removeprefix("data: "))


class ServeTest(FolderTest):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.loras = cls.root / "loras"
        cls.loras.mkdir()
        shutil.copy(SHAPES / "recolor.safetensors", cls.loras)
        cls.server = cls.enterClassContext(
            serving.Served(SHAPES / "model", lora_dir=cls.loras, max_queue=3, device="cpu", threads=1))

    def start(self, **fields):
        return self.server.ask("POST", "/v1/jobs", fields)["id"]

    def make(self, **fields):
        """The view of a job that is done, and its first file."""
        view = self.server.finished(self.start(**fields))
        self.assertEqual("done", view["state"], view["error"])
        return view, self.server.bytes(view["files"][0]["url"])

    def refusal(self, status, method, path, value=None):
        """What the server says that refuses a request so."""
        with self.assertRaises(urllib.error.HTTPError) as caught:
            self.server.ask(method, path, value)
        with caught.exception as error:
            self.assertEqual(status, error.code)
            return json.loads(error.read())["error"]["message"]

    def generate(self, name, **flags):
        """The pixels of what `atelier generate` makes of the same settings."""
        output = self.dir / name
        program.run_line(program.command("generate", model_paths=json.dumps([str(SHAPES / "model")]), device="cpu",
                                         threads=1, **{**JOB, **flags, "output": output}), code=0)
        return pixels(output)

    def pixels_of(self, data):
        path = self.dir / "reply.png"
        path.write_bytes(data)
        return pixels(path)

    def test_a_job_makes_what_generate_makes(self):
        view, picture = self.make(**JOB)
        self.assertEqual(self.generate("same.png"), self.pixels_of(picture))
        self.assertEqual((2, 2), (view["step"], view["steps"]))
        self.assertEqual({"url": f"/v1/jobs/{view['id']}/files/0", "content_type": "image/png", "seed": 5}, view["files"][0])
        self.assertEqual(JOB, {name: view["settings"][name] for name in JOB})
        again, same = self.make(**view["settings"])
        self.assertEqual(view["settings"], again["settings"])
        self.assertEqual(self.pixels_of(picture), self.pixels_of(same))
        self.assertIn(view["id"], [job["id"] for job in self.server.ask("GET", "/v1/jobs")["jobs"]])

    def test_several_images_of_one_job_have_seeds_that_count_up(self):
        view, first = self.make(**JOB, num_images=2)
        self.assertEqual([5, 6], [file["seed"] for file in view["files"]])
        second = self.server.bytes(view["files"][1]["url"])
        self.assertEqual(self.generate("five.png"), self.pixels_of(first))
        self.assertEqual(self.generate("six.png", seed=6), self.pixels_of(second))

    def test_a_job_tells_what_becomes_of_it(self):
        job = self.start(**{**JOB, "num_inference_steps": 6}, previews=2)
        with self.server.open("GET", f"/v1/jobs/{job}/events") as reply:
            self.assertEqual("text/event-stream", reply.headers["Content-Type"])
            told = list(events(reply))
        self.assertEqual("done", [view for name, view in told if name == "job"][-1]["state"])
        previews = [data for name, data in told if name == "preview"]
        self.assertTrue(previews)
        self.assertTrue(base64.b64decode(previews[-1]["b64_json"]).startswith(b"\xff\xd8"))
        self.assertEqual(2, self.server.ask("GET", f"/v1/jobs/{job}")["previews"])
        self.assertTrue(self.server.bytes(f"/v1/jobs/{job}/preview").startswith(b"\xff\xd8"))

    def test_a_job_is_cancelled_where_it_stands(self):
        job = self.start(**LONG)
        self.server.wait_for(lambda: self.server.ask("GET", f"/v1/jobs/{job}")["step"] > 0)
        waiting = self.start(**LONG)
        self.assertEqual("cancelled", self.server.ask("POST", f"/v1/jobs/{waiting}/cancel")["state"])
        self.server.ask("POST", f"/v1/jobs/{job}/cancel")
        view = self.server.finished(job)
        self.assertEqual("cancelled", view["state"])
        self.assertLess(view["step"], view["steps"])
        self.assertEqual([], view["files"])
        self.assertIn("over", self.refusal(409, "POST", f"/v1/jobs/{job}/cancel"))

    def test_a_full_line_refuses_jobs(self):
        jobs = [self.start(**LONG) for _ in range(3)]
        try:
            self.server.wait_for(lambda: self.server.ask("GET", f"/v1/jobs/{jobs[0]}")["state"] == "running")
            jobs.append(self.start(**LONG))
            self.assertEqual([1, 2, 3], [self.server.ask("GET", f"/v1/jobs/{job}")["place"] for job in jobs[1:]])
            with self.assertRaises(urllib.error.HTTPError) as caught:
                self.start(**LONG)
            with caught.exception as error:
                self.assertEqual(429, error.code)
                self.assertGreater(int(error.headers["Retry-After"]), 0)
        finally:
            for job in reversed(jobs):
                self.server.ask("DELETE", f"/v1/jobs/{job}")

    def test_a_request_that_is_sent_again_makes_no_second_job(self):
        def send():
            headers = {"Content-Type": "application/json", "Idempotency-Key": "one"}
            request = urllib.request.Request(self.server.url + "/v1/jobs", json.dumps(JOB).encode(), headers)
            with urllib.request.urlopen(request, timeout=serving.WAIT_S) as reply:
                ids.append(json.loads(reply.read())["id"])
        ids = []
        threads = [threading.Thread(target=send) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(4, len(ids))
        self.assertEqual(1, len(set(ids)))
        self.server.finished(ids[0])

    def test_what_is_wrong_is_named(self):
        for fields, words in (({"promt": "a"}, ("promt", '"prompt"')), ({"height": 1000}, ("height", "16")),
                              ({"height": "x"}, ("height",)), ({"deadline": -5}, ("deadline: -5 is below 0",)),
                              ({"height": -16}, ("height: -16 is below 1",)),
                              ({"solver": "eular"}, ("solver", "euler")),
                              ({"input_image": "/etc/passwd"}, ("input_image",)),
                              ({"inpaint_mask": "http://example.org/a.png"}, ("inpaint_mask", "fetched")),
                              ({"output": "/tmp/a.png"}, ("output",)), ({"lora_dir": "/"}, ("lora_dir",)),
                              ({"format": "gif"}, ("format", "png")),
                              ({"loras": [{"name": "recolour"}]}, ("loras", '"recolor"')),
                              ({"loras": [{"name": "../recolor"}]}, ("loras",))):
            with self.subTest(fields):
                message = self.refusal(400, "POST", "/v1/jobs", JOB | fields)
                for word in words:
                    self.assertIn(word, message)
                self.assertNotIn(str(self.root), message)
        for fields in ({"height": 4096, "width": 4096}, {"num_inference_steps": 1000}, {"num_images": 17}):
            with self.subTest(fields):
                self.refusal(413, "POST", "/v1/jobs", JOB | fields)
        self.assertIn("image", self.refusal(400, "POST", "/v1/jobs",
                                            JOB | {"input_image": base64.b64encode(b"no picture").decode()}))
        self.refusal(404, "GET", "/v1/jobs/job_none")

    def test_pictures_are_sent_along_or_taken_from_a_job(self):
        start = SHAPES / "inpaint/before.png"
        sent, picture = self.make(**JOB, input_image="data:image/png;base64," + base64.b64encode(start.read_bytes()).decode(),
                                  denoising_strength=0.5)
        self.assertEqual(self.generate("started.png", input_image=start, denoising_strength=0.5), self.pixels_of(picture))
        (self.dir / "before.png").write_bytes(picture)
        _, picture = self.make(**JOB, input_image={"job": sent["id"], "file": 0})
        self.assertEqual(self.generate("again.png", input_image=self.dir / "before.png"), self.pixels_of(picture))

    def test_requests_have_loras_of_their_own(self):
        plain = self.generate("plain.png")
        changed = self.generate("changed.png", lora=f"{SHAPES / 'recolor.safetensors'}:0.5")
        self.assertNotEqual(plain, changed)
        view, picture = self.make(**JOB, loras=[{"name": "recolor", "strength": 0.5}])
        self.assertEqual(changed, self.pixels_of(picture))
        self.assertEqual([{"name": "recolor", "strength": 0.5}], view["settings"]["loras"])
        self.assertEqual(plain, self.pixels_of(self.make(**JOB)[1]))

    def test_loras_are_registered_and_loaded(self):
        [lora] = [lora for lora in self.server.ask("GET", "/v1/loras")["loras"] if lora["name"] == "recolor"]
        self.assertEqual((False, 16), (lora["loaded"], lora["metadata"]["rank"]))
        changed = self.generate("changed.png", lora=f"{SHAPES / 'recolor.safetensors'}:0.5")
        self.server.ask("POST", "/v1/loras", {"name": "other", "file": "recolor.safetensors"})
        self.server.ask("POST", "/v1/loras/other/load", {"strength": 0.5})
        try:
            self.assertEqual(changed, self.pixels_of(self.make(**JOB)[1]))
            self.assertNotEqual(changed, self.pixels_of(self.make(**JOB, loras=[])[1]))
        finally:
            self.server.ask("DELETE", "/v1/loras/other")
        self.assertNotEqual(changed, self.pixels_of(self.make(**JOB)[1]))
        self.refusal(404, "POST", "/v1/loras/other/load")
        self.refusal(404, "POST", "/v1/loras", {"name": "a", "file": "none"})
        self.refusal(400, "POST", "/v1/loras", {"name": "a", "file": "../loras/recolor"})
        (self.loras / "broken.safetensors").write_bytes(b"no LoRA")
        message = self.refusal(400, "POST", "/v1/loras", {"name": "a", "file": "broken"})
        self.assertNotIn(str(self.root), message)

    def test_a_lora_that_comes_later_is_known_by_its_name(self):
        with self.subTest("asked for"):
            shutil.copy(SHAPES / "recolor.safetensors", self.loras / "late.safetensors")
            changed = self.generate("changed.png", lora=f"{SHAPES / 'recolor.safetensors'}:0.5")
            self.assertEqual(changed, self.pixels_of(self.make(**JOB, loras=[{"name": "late", "strength": 0.5}])[1]))
        with self.subTest("listed, by each API"):
            (self.loras / "later.safetensors").write_bytes(b"half of it")
            self.assertIsNone(self.server.ask("POST", "/sdapi/v1/refresh-loras"))
            self.assertIn("later", [lora["name"] for lora in self.server.ask("GET", "/sdapi/v1/loras")])
            shutil.copy(SHAPES / "recolor.safetensors", self.loras / "later.safetensors")
            [later] = [lora for lora in self.server.ask("GET", "/v1/loras")["loras"] if lora["name"] == "later"]
            self.assertEqual({"rank": 16}, {name: value for name, value in later["metadata"].items() if name in ("rank", "error")})
        with self.subTest("a name that was removed stays so"):
            self.server.ask("DELETE", "/v1/loras/late")
            self.assertNotIn("late", [lora["name"] for lora in self.server.ask("GET", "/v1/loras")["loras"]])

    def test_sglang_sets_loras(self):
        changed = self.generate("changed.png", lora=f"{SHAPES / 'recolor.safetensors'}:0.5")
        self.server.ask("POST", "/v1/set_lora", {"lora_nickname": ["mine"], "lora_path": ["recolor"], "strength": [0.5]})
        told = self.server.ask("GET", "/v1/list_loras")
        self.assertIn({"nickname": "mine", "path": "recolor.safetensors"}, told["loaded_adapters"])
        self.assertEqual([("mine", 0.5)], [(lora["nickname"], lora["strength"]) for lora in told["active"]["transformer"]])
        self.assertEqual(changed, self.pixels_of(self.make(**JOB)[1]))
        self.server.ask("POST", "/v1/unmerge_lora_weights", {})
        self.assertNotEqual(changed, self.pixels_of(self.make(**JOB)[1]))
        self.server.ask("POST", "/v1/merge_lora_weights", {})
        self.assertEqual(changed, self.pixels_of(self.make(**JOB)[1]))
        self.refusal(404, "POST", "/v1/set_lora", {"lora_nickname": ["mine", "nobody"]})
        [active] = self.server.ask("GET", "/v1/list_loras")["active"]["transformer"]
        self.assertEqual(("mine", 0.5), (active["nickname"], active["strength"]))
        self.server.ask("POST", "/v1/unmerge_lora_weights", {})
        self.assertIn("target", self.refusal(400, "POST", "/v1/set_lora", {"lora_nickname": "mine", "target": "transformer_2"}))

    def test_the_model_and_the_server_are_described(self):
        told = self.server.ask("GET", "/v1/inputs")
        self.assertEqual(("model", "qwen_image", False), (told["model"], told["family"], told["clips"]))
        self.assertEqual((128, 128), (told["defaults"]["height"], told["defaults"]["width"]))
        rows = {row["name"]: row for row in told["settings"] + told["inputs"]}
        self.assertEqual(("mask", "file", "seed"), tuple(rows[name]["kind"] for name in ("inpaint_mask", "latents", "seed")))
        self.assertTrue(rows["input_image"]["starts"])
        self.assertNotIn("output", rows)
        metrics = self.server.bytes("/metrics").decode()
        self.assertIn("sglang:diffusion_num_queue_reqs", metrics)
        self.assertEqual({"status": "ok"}, self.server.ask("GET", "/health"))


class PlanTest(FolderTest):

    def predicted_and_measured(self, count):
        """The bytes that so many jobs were planned for, and those that they took together."""
        device = "simulated:256MiB:4GB/s"
        flags = dict(device=device, dtype="float32", threads=1, max_batch=count, num_inference_steps=60)
        with serving.Served(SHAPES / "model", **flags) as server:
            jobs = [server.ask("POST", "/v1/jobs", {"prompt": JOB["prompt"], "seed": seed})["id"] for seed in range(count)]
            server.wait_for(lambda: all(server.ask("GET", f"/v1/jobs/{job}")["step"] > 0 for job in jobs))
            self.assertEqual(["running"] * count, [server.ask("GET", f"/v1/jobs/{job}")["state"] for job in jobs])
            for job in jobs[1:]:
                server.ask("POST", f"/v1/jobs/{job}/cancel")
            self.assertEqual("done", server.finished(jobs[0])["state"])
            server.process.terminate()
            server.process.wait(60)
        said = "".join(server.said)
        found = re.search(r"memory: predicted ([0-9.]+) (\w+), measured ([0-9.]+) (\w+)", said)
        self.assertIsNotNone(found, said)
        units = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
        return [float(found[i]) * units[found[i + 1]] for i in (1, 3)]

    def test_what_is_denoised_together_takes_what_was_planned(self):
        for count in (1, 2, 4):
            with self.subTest(count):
                predicted, measured = self.predicted_and_measured(count)
                self.assertLess(abs(predicted - measured), 0.05 * measured, f"predicted {predicted}, measured {measured}")

    def test_a_plan_says_what_is_admitted(self):
        line = program.command("plan", "serve", model_paths=json.dumps([str(SHAPES / "model")]), device_profile="4090")
        admitted = [re.search(r"admits (\d+) images? of 128x128 at once\n", program.run_line(line + more, code=0).stdout)
                    for more in ([], ["--max_batch", "3"], ["--vram", "798MiB"])]
        self.assertTrue(all(admitted))
        most, asked, least = (int(found[1]) for found in admitted)
        self.assertEqual(3, asked)
        self.assertLess(least, most)


class EndsTest(FolderTest):

    def test_jobs_of_clips_survive_a_kill(self):
        results = self.dir / "results"
        flags = dict(output_dir=results, device="cpu", threads=1)
        with serving.Served(CLIPS / "model", **flags) as server:
            done = server.ask("POST", "/v1/jobs", CLIP)["id"]
            before = server.bytes(server.finished(done)["files"][0]["url"])
            long = server.ask("POST", "/v1/jobs", CLIP | {"num_inference_steps": 150})["id"]
            waiting = server.ask("POST", "/v1/jobs", CLIP)["id"]
            server.wait_for(lambda: server.ask("GET", f"/v1/jobs/{long}")["step"] > 0)
            server.process.kill()
        with serving.Served(CLIPS / "model", **flags) as server:
            views = {view["id"]: view for view in server.ask("GET", "/v1/jobs")["jobs"]}
            self.assertEqual({done, long, waiting}, set(views))
            self.assertEqual("done", views[done]["state"])
            self.assertEqual(before, server.bytes(views[done]["files"][0]["url"]))
            self.assertIn(views[long]["state"], ("queued", "running"))
            server.ask("POST", f"/v1/jobs/{long}/cancel")
            view = server.finished(waiting)
            self.assertEqual("done", view["state"], view["error"])
            self.assertEqual(before, server.bytes(view["files"][0]["url"]))
            server.ask("DELETE", f"/v1/jobs/{waiting}")
        self.assertEqual([f"{done}.gif"], [path.name for path in results.iterdir() if path.is_file()])

    def test_a_signal_ends_the_server_while_it_works(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number), serving.Served(SHAPES / "model", device="cpu", threads=1) as server:
                job = server.ask("POST", "/v1/jobs", LONG)["id"]
                server.wait_for(lambda: server.ask("GET", f"/v1/jobs/{job}")["step"] > 0)
                server.process.send_signal(number)
                self.assertEqual(130, server.process.wait(60))
            self.assertIn("error: stopped by the user [CANCELLED]", "".join(server.said))

    def test_a_key_is_asked_for(self):
        key = self.dir / "key"
        key.write_text("secret\n")
        with serving.Served(SHAPES / "model", device="cpu", threads=1, key="", api_key_file=key) as server:
            self.assertEqual(200, server.status("GET", "/health"))
            self.assertEqual(401, server.status("GET", "/v1/jobs"))
            server.key = "secret"
            self.assertEqual(200, server.status("GET", "/v1/jobs"))

    def test_mistakes_are_told_before_the_server_begins(self):
        (self.dir / "file").write_text("")
        line = program.command("serve", device="cpu", port=0, model_paths=json.dumps([str(SHAPES / "model")]))
        for flags, words in ((["--api_key", "secret"], ("--api_key_file", "ATELIER_API_KEY")),
                             (["--prompts_file", "a"], ("--prompts_file",)), (["--max_batch", "0"], ("--max_batch",)),
                             (["--host", "0.0.0.0"], ("key",)), (["--lora", str(self.dir / "none")], ("--lora",)),
                             (["--lora_dir", str(self.dir / "none")], ("--lora_dir",)),
                             (["--output_dir", str(self.dir / "file")], (str(self.dir / "file"),)),
                             (["--num_inference_steps", "500"], ("--num_inference_steps: 500 is more than 200", "--max_steps")),
                             (["--height", "4096", "--width", "4096"], ("--height: 16777216 pixels in all", "--max_pixels")),
                             (["--num_images", "50"], ("--num_images: 50 is more than 16", "--max_images")),
                             (["--height", "1000"], ("height",))):
            with self.subTest(flags):
                result = program.run_line(line + flags)
                self.assertIn(result.returncode, (2, 3), result.stderr)
                self.assertEqual("", result.stdout)
                for word in words:
                    self.assertIn(word, result.stderr)

    def test_two_servers_do_not_share_a_folder(self):
        flags = dict(output_dir=self.dir / "results", device="cpu", threads=1)
        with serving.Served(SHAPES / "model", **flags) as server:
            jobs = self.dir / "results/.atelier-jobs"
            self.assertEqual(0o700, stat.S_IMODE(os.stat(jobs).st_mode))
            line = program.command("serve", model_paths=json.dumps([str(SHAPES / "model")]), port=0, **flags)
            self.assertIn("another server", program.run_line(line, code=3).stderr)
            self.assertEqual(200, server.status("GET", "/health"))


if __name__ == "__main__":
    unittest.main()
