"""The page of `atelier serve`, as people use it: driven in a headless Chromium, with the model of examples/shapes."""
import io
import json
import pathlib
import shutil
import sys
import tempfile
import unittest
import zlib

import browser

PROGRAM = browser.find()
if PROGRAM is None:
    print("skipped: there is no Chromium; tools/setup --tests installs chromium-headless-shell")
    sys.exit(77)

from PIL import Image, PngImagePlugin  # noqa: E402

import program  # noqa: E402
import serving  # noqa: E402

SHAPES = program.REPOSITORY / "examples/shapes"
PROMPT = "a red circle on a white ground"
LARGEST_SEED = 2**64 - 1
LONG = {"width": 512, "height": 512, "num_inference_steps": 200}  # half a minute, where nobody cancels it

# Text that is hard to read: WCAG's contrast below 4.5.
PALE = """(() => {
    const channels = (color) => color.match(/[\\d.]+/g).map(Number);
    const light = ([r, g, b]) => [r, g, b].map((value) => value / 255).map((value) =>
        value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
        .reduce((sum, value, at) => sum + value * [0.2126, 0.7152, 0.0722][at], 0);
    const ground = (element) => {
        for (; element; element = element.parentElement) {
            const color = channels(getComputedStyle(element).backgroundColor);
            if (color.length === 3 || color[3] === 1) return color;
        }
    };
    const pale = [];
    for (const element of document.querySelectorAll("body *")) {
        const hasText = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
        if (!hasText || !element.checkVisibility() || element.disabled) continue;
        const [one, other] = [light(channels(getComputedStyle(element).color)), light(ground(element))].sort((a, b) => b - a);
        if ((one + 0.05) / (other + 0.05) < 4.5) pale.push(element.outerHTML);
    }
    return pale;
})()"""


class Page(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        holder = tempfile.TemporaryDirectory(prefix="atelier_page_")
        cls.addClassCleanup(holder.cleanup)
        cls.folder = pathlib.Path(holder.name)
        (cls.folder / "loras").mkdir()
        shutil.copy(SHAPES / "recolor.safetensors", cls.folder / "loras/recolor.safetensors")
        cls.server = cls.enterClassContext(serving.Served(SHAPES / "model", lora_dir=cls.folder / "loras"))
        cls.browser = cls.enterClassContext(browser.Browser(PROGRAM))

    def setUp(self):
        for job in self.server.ask("GET", "/v1/jobs")["jobs"]:
            self.server.ask("DELETE", f"/v1/jobs/{job['id']}")

    def open(self, server=None, **size):
        server = server or self.server
        page = self.browser.open(server.url + "/", **size)
        self.addCleanup(self.check, page, server.url)
        return page

    def ready(self, **size):
        page = self.open(**size)
        page.wait("document.querySelector('#field_prompt')")
        return page

    def check(self, page, url):
        """Nothing went wrong unseen, and nothing was asked of anybody else."""
        self.assertEqual([], page.problems)
        self.assertEqual([], [asked for asked in page.requests if not asked.startswith((f"{url}/", "data:", f"blob:{url}/"))])
        page.close()

    def made(self, **fields):
        """The view of a job that the test asked for itself."""
        request = {"prompt": PROMPT, "num_inference_steps": 2} | fields
        return self.server.finished(self.server.ask("POST", "/v1/jobs", request)["id"])

    def file_of(self, name, job, number=0):
        path = self.folder / name
        path.write_bytes(self.server.bytes(job["files"][number]["url"]))
        return path

    def fill(self, page, **fields):
        for name, value in fields.items():
            page.fill(f"#field_{name}", value)

    def values(self, page, *names):
        return [page.evaluate(f"document.querySelector('#field_{name}').value") for name in names]

    def tiles(self, page, count):
        page.wait(f"document.querySelectorAll('#tiles li').length === {count}")
        page.wait("[...document.querySelectorAll('#tiles img')].every((image) => image.complete && image.naturalWidth > 0)")

    def newest(self):
        return self.server.ask("GET", "/v1/jobs")["jobs"][0]

    def test_pictures_are_made_of_what_is_typed(self):
        page = self.ready()
        self.fill(page, prompt=PROMPT, seed=LARGEST_SEED - 1, num_inference_steps=3, width=64, height=96)
        page.fill("#count", 2)
        page.click("#generate")
        self.tiles(page, 2)
        page.wait("document.querySelector('#status').textContent === 'Done: 2 results.'")
        job = self.newest()
        self.assertEqual([LARGEST_SEED - 1, LARGEST_SEED], [file["seed"] for file in job["files"]])
        self.assertEqual((64, 96), Image.open(self.file_of("made.png", job)).size)
        self.assertIn(f"seed {LARGEST_SEED}", page.text("#tiles li:nth-child(2)"))
        page.click("#tiles li:nth-child(2) button")
        settings = page.text("#settings")
        for text in (PROMPT, str(LARGEST_SEED), "Steps\n3", "Width\n64"):
            self.assertIn(text, settings)

    def test_previews_and_progress_come_while_it_is_made(self):
        page = self.ready()
        page.evaluate("""new MutationObserver(() => {
            const card = document.querySelector("#queue li.running:has(.preview:not([hidden]))");
            if (card) window.seen = card.querySelector("img").src + card.innerText;
        }).observe(document.querySelector("#queue"), {subtree: true, childList: true, attributes: true})""")
        # The one that waits is listened to before it begins, however fast it is.
        self.fill(page, prompt="long", **LONG)
        page.click("#generate")
        page.wait("document.querySelectorAll('#queue li').length === 1")
        self.fill(page, prompt=PROMPT, width=128, height=128, num_inference_steps=30)
        page.click("#generate")
        page.wait("document.querySelectorAll('#queue li').length === 2")
        page.wait("document.querySelector('#queue li.queued').innerText.includes('Next in line')")
        page.evaluate("window.seen = null")
        page.click("#queue li.running button")
        self.tiles(page, 1)
        page.wait("window.seen")
        self.assertRegex(page.evaluate("window.seen"), r"(?s)^data:image/jpeg;base64,.*Step \d+ of 30")

    def test_a_job_is_cancelled(self):
        page = self.ready()
        self.fill(page, prompt="long", **LONG)
        page.click("#generate")
        page.wait("document.querySelector('#queue li.running')")
        page.click("#queue li.running button")
        page.wait("!document.querySelector('#queue li')")
        page.wait("document.querySelector('#status').textContent === 'Cancelled.'")
        self.assertEqual("cancelled", self.newest()["state"])
        self.assertEqual("generate", page.evaluate("document.activeElement.id"))

    def test_settings_come_back_from_a_picture_that_is_dropped(self):
        job = self.made(prompt="a \"blue\" stär <b>on</b> a red ground", negative_prompt="blurry", seed=LARGEST_SEED,
                        cfg_scale=2.5, width=64, solver="unipc", loras=[{"name": "recolor", "strength": -0.35}])
        page = self.ready()
        page.drop("main", self.file_of("dropped.png", job))
        page.wait("document.querySelector('#status').textContent.startsWith('Took the settings of dropped.png')")
        self.assertEqual(["a \"blue\" stär <b>on</b> a red ground", "blurry", str(LARGEST_SEED), "2.5", "64", "unipc", "2"],
                         self.values(page, "prompt", "negative_prompt", "seed", "cfg_scale", "width", "solver", "num_inference_steps"))
        self.assertEqual("-0.35", page.evaluate("document.querySelector('.lora input[type=number]').value"))
        # And what is made of them is the picture once more.
        page.click("#generate")
        self.tiles(page, 2)
        again = self.newest()
        self.assertNotEqual(job["id"], again["id"])
        pictures = [Image.open(io.BytesIO(self.server.bytes(made["files"][0]["url"]))).tobytes() for made in (job, again)]
        self.assertEqual(*pictures)

    def test_settings_come_back_from_a_jpeg(self):
        page = self.ready()
        page.drop("main", self.file_of("dropped.jpg", self.made(seed=7, format="jpeg")))
        page.wait("document.querySelector('#field_seed').value === '7'")
        self.assertEqual([PROMPT], self.values(page, "prompt"))

    def test_settings_of_other_programs_are_read(self):
        text = ("a cat, <lora:recolor:0.5> sleeping\nNegative prompt: ugly, dog\n"
                "Steps: 12, Sampler: Euler a, CFG scale: 6.5, Seed: 99, Size: 96x64, Model: \"a, b\", Version: 1")
        chunks = {"text": dict(zip=False), "packed": dict(zip=True)}
        page = self.ready()
        for number, (name, how) in enumerate(chunks.items()):
            for is_unicode in (False, True):
                words = PngImagePlugin.PngInfo()
                seed = 100 + 2 * number + is_unicode
                said = text.replace("99", str(seed)).replace("cat", "cät" if is_unicode else "cat")
                (words.add_itxt if is_unicode else words.add_text)("parameters", said, **how)
                path = self.folder / f"{name}_{is_unicode}.png"
                Image.new("RGB", (8, 8)).save(path, pnginfo=words)
                page.drop("main", path)
                page.wait(f"document.querySelector('#field_seed').value === '{seed}'")
                self.assertEqual(["a cät, sleeping" if is_unicode else "a cat, sleeping", "ugly, dog", "12", "6.5", "96", "64"],
                                 self.values(page, "prompt", "negative_prompt", "num_inference_steps", "cfg_scale", "width", "height"))
                self.assertEqual("0.5", page.evaluate("document.querySelector('.lora input[type=number]').value"))

    def test_a_file_that_says_nothing_changes_nothing(self):
        page = self.ready()
        self.fill(page, prompt=PROMPT)
        plain = self.folder / "plain.png"
        Image.new("RGB", (8, 8)).save(plain)
        broken = self.folder / "broken.png"
        broken.write_bytes(b"\x89PNG\r\n\x1a\n" + (30).to_bytes(4, "big") + b"zTXtatelier\0\0" + zlib.compress(b"{")[:9] + bytes(40))
        for path in (plain, broken):
            page.drop("main", path)
            page.wait(f"document.querySelector('#status').textContent.startsWith('{path.name} does not say how it was made.')")
            self.assertEqual([PROMPT], self.values(page, "prompt"))

    def test_a_lora_is_moved_by_its_slider(self):
        page = self.ready()
        self.fill(page, prompt=PROMPT, seed=5, num_inference_steps=4, width=64, height=64)
        page.click("#generate")
        self.tiles(page, 1)
        page.evaluate("document.querySelector('.lora input[type=range]').focus()")
        for _ in range(4):
            page.press("ArrowRight")
        page.click("#generate")
        self.tiles(page, 2)
        jobs = self.server.ask("GET", "/v1/jobs")["jobs"]
        self.assertEqual([[{"name": "recolor", "strength": 1.2}], []], [job["settings"].get("loras", []) for job in jobs])
        self.assertNotEqual(*[Image.open(io.BytesIO(self.server.bytes(job["files"][0]["url"]))).tobytes() for job in jobs])
        page.click("#compare")
        self.tiles(page, 5)
        compared = self.server.ask("GET", "/v1/jobs")["jobs"][:3]
        self.assertEqual([1.2, 0.6, 0], [job["settings"]["loras"][0]["strength"] for job in compared])
        self.assertEqual({5}, {job["settings"]["seed"] for job in compared})

    def test_a_result_becomes_an_input(self):
        self.made(seed=3, width=64, height=64)
        page = self.ready()
        self.tiles(page, 1)
        page.click("#tiles button")
        page.wait("document.querySelector('#viewer').open")
        page.evaluate("[...document.querySelectorAll('#uses button')].find((button) => button.textContent === 'Use as Input image').click()")
        page.wait("document.querySelector('[data-name=input_image] .items img').naturalWidth === 64")
        self.fill(page, prompt=PROMPT, num_inference_steps=2, width=64, height=64)
        page.click("#generate")
        self.tiles(page, 2)
        self.assertEqual("done", self.newest()["state"])

    def test_a_picture_is_chosen_dropped_and_pasted(self):
        picture = self.folder / "given.png"
        Image.new("RGB", (40, 30), "red").save(picture)
        page = self.ready()
        shown = "document.querySelectorAll('[data-name=input_image] .items img').length"
        page.choose("#field_input_image", picture)
        page.wait(f"{shown} === 1")
        page.click("[data-name=input_image] .items button")
        page.wait(f"{shown} === 0")
        page.drop("[data-name=input_image]", picture)
        page.wait(f"{shown} === 1")
        page.click("[data-name=input_image] .items button")
        page.evaluate(f"""(async () => {{
            const data = new DataTransfer();
            const bytes = Uint8Array.from({list(picture.read_bytes())});
            data.items.add(new File([bytes], "pasted.png", {{type: "image/png"}}));
            document.dispatchEvent(new ClipboardEvent("paste", {{clipboardData: data, bubbles: true}}));
        }})()""")
        page.wait(f"{shown} === 1")
        self.fill(page, prompt=PROMPT, num_inference_steps=2, width=64, height=64)
        page.click("#generate")
        self.tiles(page, 1)

    def test_a_mistake_is_told_beside_the_button(self):
        page = self.ready()
        self.fill(page, prompt=PROMPT, width=65)
        page.click("#generate")
        page.wait("document.querySelector('#error').textContent.includes('width')")
        self.assertEqual(1, len(page.problems), page.problems)
        self.assertIn("400", page.problems.pop())
        self.fill(page, width=64)
        self.assertEqual("", page.text("#error"))

    def test_results_are_shown_large_and_deleted(self):
        self.made(seed=1)
        self.made(seed=2, num_images=2)
        page = self.ready()
        self.tiles(page, 3)
        page.click("#tiles li:nth-child(1) button")
        for place, seed in enumerate((2, 3, 1), 1):
            page.wait(f"document.querySelector('#viewer_title').textContent === '{place} of 3'")
            self.assertIn(f"Seed\n{seed}", page.text("#settings"))
            page.press("ArrowRight")
        page.press("ArrowLeft")
        self.assertEqual("2 of 3", page.text("#viewer_title"))
        link = "document.querySelector('#uses a')"
        self.assertRegex(page.evaluate(f"{link}.download"), r"_1\.png$")
        self.assertEqual("image/png", page.evaluate(f"fetch({link}.href).then((reply) => reply.blob()).then((blob) => blob.type)"))
        page.click("#uses button:last-child")
        self.assertEqual("Delete all 2 of this job", page.text("#uses button:last-child"))
        page.click("#uses button:last-child")
        self.tiles(page, 1)
        self.assertEqual(1, len(self.server.ask("GET", "/v1/jobs")["jobs"]))

    def test_a_reload_keeps_what_was_typed(self):
        page = self.ready()
        self.fill(page, prompt=PROMPT, num_inference_steps=17, solver="unipc")
        page.fill("#count", 3)
        page.fill(".lora input[type=range]", "-0.5")
        page.call("Page.reload")
        page.wait("document.querySelector('#field_prompt')?.value")
        self.assertEqual([PROMPT, "17", "unipc"], self.values(page, "prompt", "num_inference_steps", "solver"))
        self.assertEqual(["3", "-0.5", True], page.evaluate(
            "[byId('count').value, ...['number', 'checkbox'].map((type) => document.querySelector(`.lora input[type=${type}]`))"
            ".map((field) => field.type === 'checkbox' ? field.checked : field.value)]"))
        page.click("#reset")
        self.assertEqual(["", "", ""], self.values(page, "prompt", "num_inference_steps", "solver"))

    def test_it_is_used_by_the_keyboard_alone(self):
        page = self.ready()

        def go_to(selector):
            for _ in range(80):
                if page.evaluate(f"document.activeElement.matches({json.dumps(selector)})"):
                    return
                page.press("Tab")
            self.fail(f"Tab does not come to {selector}")

        go_to("#field_prompt")
        page.write(PROMPT)
        go_to("#field_num_inference_steps")
        page.write("2")
        page.press("Enter", browser.CONTROL)
        self.tiles(page, 1)
        go_to("#tiles button")
        self.assertNotEqual("none", page.evaluate("getComputedStyle(document.activeElement).outlineStyle"))
        page.press("Enter")
        page.wait("document.querySelector('#viewer').open")
        page.press("Escape")
        page.wait("!document.querySelector('#viewer').open")
        self.assertTrue(page.evaluate("document.activeElement.matches('#tiles button')"))

    def test_controls_have_names_and_progress_is_spoken(self):
        page = self.ready()
        page.evaluate("document.querySelector('#advanced_group').open = true")
        nodes = page.call("Accessibility.getFullAXTree")["nodes"]
        controls = [node for node in nodes if not node["ignored"] and node["role"]["value"] not in ("RootWebArea", "Iframe")
                    and any(about["name"] == "focusable" and about["value"]["value"] for about in node.get("properties", []))]
        self.assertGreater(len(controls), 15)
        self.assertEqual([], [node["role"]["value"] for node in controls if not node.get("name", {}).get("value")])
        self.assertEqual("polite", page.evaluate("byId('status').ariaLive"))

    def test_texts_can_be_read_on_a_phone_in_light_and_dark(self):
        self.made(seed=4)
        self.made(prompt="a" * 300, seed=LARGEST_SEED)
        for dark in (False, True):
            page = self.ready(width=360, height=740, dark=dark, mobile=True)
            self.tiles(page, 2)
            page.evaluate("document.querySelector('#advanced_group').open = true")
            self.fill(page, prompt="long", **LONG)
            page.click("#generate")
            page.wait("document.querySelector('#queue li.running')")
            self.check_view(page)
            page.click("#queue li.running button")
            page.wait("!document.querySelector('#queue li')")
            page.click("#tiles button")
            page.wait("document.querySelector('#viewer').open")
            self.check_view(page)

    def check_view(self, page):
        self.assertEqual(360, page.evaluate("document.documentElement.scrollWidth"))
        self.assertEqual([], page.evaluate("""[...document.querySelectorAll("body *")].filter((element) => {
            const box = element.getBoundingClientRect();
            return element.checkVisibility() && !element.matches(".skip") && (box.right > 360.5 || box.left < -0.5);
        }).map((element) => element.outerHTML)"""))
        self.assertEqual([], page.evaluate(PALE))

    def test_a_key_is_asked_for_and_goes_with_the_tab(self):
        with serving.Served(SHAPES / "model", key="secret key") as server:
            job = server.finished(server.ask("POST", "/v1/jobs", {"prompt": PROMPT, "num_inference_steps": 1})["id"])
            page = self.open(server)
            for key in ("wrong", "secret key"):
                page.wait("document.querySelector('#key_dialog').open")
                page.evaluate("byId('key').focus()")
                page.write(key)
                page.press("Enter")
                page.wait("!document.querySelector('#key_dialog').open || byId('key_message').textContent.includes('refuses')")
            self.tiles(page, 1)
            self.assertTrue(page.evaluate("document.querySelector('#tiles img').src.startsWith('blob:')"))
            page.call("Page.reload")
            page.wait("document.querySelectorAll('#tiles img').length === 1")
            self.assertEqual([None, "secret key"], page.evaluate("[localStorage.getItem('atelier.key'), sessionStorage.getItem('atelier.key')]"))
            self.assertEqual(1, len(job["files"]))
            self.assertTrue(all("401" in problem for problem in page.problems), page.problems)
            page.problems.clear()

    def test_no_script_but_its_own_is_run(self):
        page = self.ready()
        policy = self.server.open("GET", "/").headers["Content-Security-Policy"]
        self.assertRegex(policy, r"default-src 'none'; script-src 'sha256-[^']+';")
        self.assertNotIn("unsafe", policy)
        page.evaluate("document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.evil = true'}))")
        page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.evil = true\">')")
        page.evaluate("fetch('https://example.org').catch(() => {})")
        page.wait("true")
        self.assertFalse(page.evaluate("window.evil ?? false"))
        self.assertGreaterEqual(len([problem for problem in page.problems if "Content Security Policy" in problem]), 2, page.problems)
        page.problems.clear()
        page.requests[:] = [asked for asked in page.requests if "example.org" not in asked]


if __name__ == "__main__":
    unittest.main()
