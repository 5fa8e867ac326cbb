"""webuiapi, the client of Automatic1111's API, and requests as Open WebUI and SillyTavern send them."""
import base64
import io
import json
import threading
import unittest
import urllib.error
import urllib.parse

try:
    import webuiapi
except ImportError:
    print("skipped: there is no webuiapi; tools/setup --tests installs it")
    raise SystemExit(77)

from PIL import Image

from api_runs import SIZE, STEPS, ApiRuns, mask

NOT_ENDING = dict(**SIZE, steps=1000)


def client_of(server, **options):
    address = urllib.parse.urlsplit(server.url)
    return webuiapi.WebUIApi(host=address.hostname, port=address.port, **options)


class SdapiTest(ApiRuns):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.api = client_of(cls.server)

    def pixels_in(self, result):
        return [self.pixels_of(text) for text in result.json["images"]]

    def refused(self, status, said, path="txt2img", **fields):
        with self.assertRaises(urllib.error.HTTPError) as refusal:
            self.server.ask("POST", "/sdapi/v1/" + path, {"prompt": "a cat", **SIZE, "steps": STEPS, **fields})
        with refusal.exception as error:
            self.assertEqual(error.code, status)
            detail = json.load(error)["detail"]
            self.assertIn(said, detail)
        return detail

    def in_background(self, call):
        """A thread that runs `call`, and the list that gets its result."""
        results = []
        thread = threading.Thread(target=lambda: results.append(call()))
        thread.start()
        self.addCleanup(thread.join)
        return thread, results

    def running(self):
        return self.server.wait_for(lambda: [job for job in self.jobs(api="sdapi", state="running") if job["step"] > 0])

    def test_pictures_are_those_of_generate(self):
        result = self.api.txt2img(prompt="a cat", negative_prompt="blurry", seed=7, steps=STEPS, cfg_scale=3, batch_size=2,
                                  **SIZE)
        made = self.generated(prompt="a cat", negative_prompt="blurry", cfg_scale=3, seed=7, num_images=2)
        self.assertEqual(self.pixels_in(result), made)
        self.assertEqual(result.image.size, (96, 64))
        self.assertEqual(result.info["all_seeds"], [7, 8])
        self.assertEqual((result.info["seed"], result.info["steps"], result.info["cfg_scale"], result.info["sampler_name"]),
                         (7, STEPS, 3, "Euler"))
        self.assertIn("Negative prompt: blurry\nSteps: 3, Sampler: Euler", result.info["infotexts"][0])
        self.assertEqual(result.info["infotexts"][0], result.image.text["parameters"])
        self.assertEqual(result.parameters["prompt"], "a cat")

    def test_a_sampler_a_schedule_and_a_lora(self):
        result = self.api.txt2img(prompt="a cat <lora:style:0.5>", seed=7, steps=STEPS, cfg_scale=3,
                                  sampler_name="UniPC", scheduler=self.api.util_get_scheduler_names()[-1], **SIZE)
        self.assertEqual(self.pixels_in(result),
                         self.generated(prompt="a cat", cfg_scale=3, seed=7, solver="unipc",
                                        schedule=self.api.util_get_scheduler_names()[-1],
                                        lora=f"{self.loras / 'style.safetensors'}:0.5"))
        self.assertEqual(result.info["sampler_name"], "UniPC")

    def test_a_picture_to_begin_from(self):
        picture = Image.open(self.picture)
        made = self.generated(prompt="a dog", cfg_scale=3, seed=7, input_image=self.picture, denoising_strength=0.7)
        result = self.api.img2img(images=[picture], prompt="a dog", seed=7, steps=STEPS, cfg_scale=3, denoising_strength=0.7,
                                  **SIZE)
        self.assertEqual(self.pixels_in(result), made)
        self.assertNotIn("init_images", result.parameters)

        shown = self.dir / "mask.png"
        shown.write_bytes(mask(0, 255))
        made = self.generated(prompt="a dog", cfg_scale=3, seed=7, input_image=self.picture, denoising_strength=0.7,
                              inpaint_mask=shown)
        for turned, picture_of_mask in ((0, mask(0, 255)), (1, mask(255, 0))):
            result = self.api.img2img(images=[picture], mask_image=Image.open(io.BytesIO(picture_of_mask)), prompt="a dog",
                                      seed=7, steps=STEPS, cfg_scale=3, denoising_strength=0.7,
                                      inpainting_mask_invert=turned, **SIZE)
            self.assertEqual(self.pixels_in(result), made)

    def test_what_there_is(self):
        self.assertEqual(self.api.util_get_model_names(), ["tiny"])
        self.assertEqual(self.api.util_get_current_model(), "tiny")
        self.assertEqual(self.api.util_get_sampler_names(), ["DPM++ 2M", "Euler", "UniPC"])
        self.assertIn("automatic", self.api.util_get_scheduler_names())
        self.assertEqual([lora["name"] for lora in self.api.get_loras()], ["style"])
        self.assertEqual([upscaler["name"] for upscaler in self.api.get_upscalers()], ["None"])
        self.assertEqual((self.api.get_latent_upscale_modes(), self.api.get_sd_vae()), ([], []))
        self.assertEqual(self.api.get_scripts(), {"txt2img": [], "img2img": []})
        self.api.util_set_model("tiny")
        self.assertIsNone(self.api.set_options({"sd_model_checkpoint": "tiny", "CLIP_stop_at_last_layers": 2}))
        self.assertIn("is not served", self.api.set_options({"sd_model_checkpoint": "v1-5"})["detail"])
        self.assertIn("did you mean sd_vae?", self.api.set_options({"sd_vea": "None"})["detail"])

    def test_progress_and_interrupt(self):
        self.api.util_wait_for_ready(check_interval=0)
        thread, results = self.in_background(lambda: self.api.txt2img(prompt="long", **NOT_ENDING))
        self.running()
        progress = self.server.wait_for(lambda: (said := self.api.get_progress())["current_image"] and said)
        self.assertEqual(progress["state"]["job_count"], 1)
        self.assertEqual(progress["state"]["sampling_steps"], 1000)
        self.assertTrue(0 < progress["progress"] < 1)
        self.assertGreater(progress["eta_relative"], 0)
        self.assertEqual(Image.open(io.BytesIO(base64.b64decode(progress["current_image"]))).format, "JPEG")
        self.assertIsNone(self.server.ask("GET", "/sdapi/v1/progress?skip_current_image=true")["current_image"])
        self.assertEqual(self.api.interrupt(), {})
        thread.join()
        self.assertEqual(results[0].images, [])
        self.assertEqual(self.api.get_progress()["progress"], 0)

    def test_mistakes_are_said(self):
        self.refused(400, 'did you mean "cfg_scale"', cfg_scal=3)
        self.refused(400, "no second pass", enable_hr=True)
        self.refused(400, 'there is no "Heun"', sampler_name="Heun")
        self.refused(400, 'did you mean "style"', prompt="a <lora:stile:1>")
        self.refused(400, "width: 100", width=100)
        picture = base64.b64encode(self.picture.read_bytes()).decode()
        for status, said, fields in ((400, "steps: -1 is below 1", dict(steps=-1)),
                                     (413, "steps: 1001 is more than 1000", dict(steps=1001)),
                                     (400, "denoising_strength: 1.5", dict(path="img2img", denoising_strength=1.5,
                                                                           init_images=[picture]))):
            self.assertTrue(self.refused(status, said, **fields).startswith(said), said)
        self.refused(400, "init_images: is missing", path="img2img")
        self.refused(400, "no address is fetched", path="img2img", init_images=[self.server.url])
        self.refused(404, "is not served", override_settings={"sd_model_checkpoint": "v1-5"})
        with self.assertRaises(RuntimeError) as refusal:
            self.api.txt2img(prompt="a cat", tiling=True, **SIZE)
        self.assertEqual(refusal.exception.args[0], 400)

    def test_a_key_is_a_password(self):
        with self.serve(key="secret") as locked:
            self.assertEqual(client_of(locked, username="any", password="secret").util_get_current_model(), "tiny")
            self.assertIn("detail", client_of(locked, username="any", password="guess").get_options())

    def test_requests_of_open_webui(self):
        """As its routers/images.py sends them with engine "automatic1111", and an administrator who chooses a model."""
        ask = self.server.ask
        options = ask("GET", "/sdapi/v1/options")
        self.assertEqual([(model["title"], model["model_name"]) for model in ask("GET", "/sdapi/v1/sd-models")],
                         [("tiny", "tiny")])
        options["sd_model_checkpoint"] = "tiny"
        ask("POST", "/sdapi/v1/options", options)
        reply = ask("POST", "/sdapi/v1/txt2img",
                    {"prompt": "a cat", "batch_size": 1, **SIZE, "steps": STEPS, "negative_prompt": "blurry",
                     "seed": 7, "cfg_scale": 3})
        self.assertEqual([self.pixels_of(text) for text in reply["images"]],
                         self.generated(prompt="a cat", negative_prompt="blurry", cfg_scale=3, seed=7))
        self.assertIn('"all_seeds"', reply["info"])

    def test_requests_of_sillytavern(self):
        """As its server passes them on: src/endpoints/stable-diffusion.js, and generateAutoImage() of its page."""
        ask = self.server.ask
        self.assertEqual(ask("GET", "/sdapi/v1/options")["sd_model_checkpoint"], "tiny")
        self.assertEqual([upscaler["name"] for upscaler in ask("GET", "/sdapi/v1/upscalers")], ["None"])
        for path in ("latent-upscale-modes", "sd-vae"):
            self.assertIsInstance(ask("GET", "/sdapi/v1/" + path), list)
        # Forge's list, asked for beside "sd-vae": one of the two has to be there.
        self.assertEqual(self.server.status("GET", "/sdapi/v1/sd-modules"), 404)
        samplers = [sampler["name"] for sampler in ask("GET", "/sdapi/v1/samplers")]
        schedulers = [scheduler["name"] for scheduler in ask("GET", "/sdapi/v1/schedulers")]
        ask("POST", "/sdapi/v1/options", {"sd_model_checkpoint": "tiny"})
        progress = ask("GET", "/sdapi/v1/progress")
        self.assertEqual((progress["progress"], progress["state"]["job_count"]), (0, 0))
        request = {
            "url": "http://localhost:7860", "auth": "",
            "prompt": "a cat", "negative_prompt": "blurry", "sampler_name": samplers[0], "scheduler": schedulers[0],
            "steps": STEPS, "cfg_scale": 3, **SIZE, "restore_faces": False, "enable_hr": False, "hr_upscaler": "None",
            "hr_scale": 2, "hr_additional_modules": [], "denoising_strength": 0.7, "hr_second_pass_steps": 0, "seed": 7,
            "override_settings": {"CLIP_stop_at_last_layers": 1}, "override_settings_restore_afterwards": True,
            "clip_skip": 1, "save_images": True, "send_images": True, "do_not_save_grid": False, "do_not_save_samples": False,
            "alwayson_scripts": {"ADetailer": {"args": [True, True, {"ad_model": "face_yolov8n.pt"}]}}}
        reply = ask("POST", "/sdapi/v1/txt2img", request)
        self.assertEqual([self.pixels_of(text) for text in reply["images"]],
                         self.generated(prompt="a cat", negative_prompt="blurry", cfg_scale=3, seed=7))
        self.assertNotIn("auth", reply["parameters"])


if __name__ == "__main__":
    unittest.main()
