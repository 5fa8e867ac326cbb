"""OpenAI's client sends several pictures to be edited: the reply is what `generate` makes of the same files."""
import base64
import json
import unittest

import openai

import atelier
import edit_models
import serving
import tiny_models
from tiny_run import FolderTest, pixels

SETTINGS = dict(num_inference_steps=2, seed=5, cfg_scale=1, edit_image_auto_resize="false")


class EditServeTest(FolderTest):

    def test_several_pictures_are_edited_together(self):
        model = edit_models.EditModels(self.root, tiny_models.get().model).variant("Qwen-Image-Edit-2511",
                                                                                   zero_cond_t=True)
        pictures = [self.dir / f"{number}.png" for number in range(3)]
        for number, path in enumerate(pictures):
            edit_models.smooth_picture(200, 300, number).save(path)
        flags = dict(plugin="qwen_image", dtype="float32", threads=1, device="cpu")
        made = []
        with serving.Served(model, **flags) as server:
            client = openai.OpenAI(base_url=server.url + "/v1", api_key="any")
            for count in (2, 3):
                reply = client.images.edit(image=pictures[:count], prompt="Make them one", size="64x96", extra_body=SETTINGS)
                path = self.dir / f"reply{count}.png"
                path.write_bytes(base64.b64decode(reply.data[0].b64_json))
                made.append(pixels(path))
        jobs = [{"prompt": "Make them one", "width": 64, "height": 96, "edit_image": list(map(str, pictures[:count])),
                 "output": str(self.dir / f"made{count}.png"), **SETTINGS, "edit_image_auto_resize": False}
                for count in (2, 3)]
        (self.dir / "jobs.jsonl").write_text("\n".join(map(json.dumps, jobs)))
        words = [str(word) for name, value in flags.items() for word in ("--" + name, value)]
        atelier.run_line([str(atelier.program()), "generate", *words, "--model_paths", atelier.paths_argument(model),
                          "--prompts_file", str(self.dir / "jobs.jsonl")], code=0, timeout=atelier.TIMEOUT_S)
        self.assertEqual(made, [pixels(self.dir / f"made{count}.png") for count in (2, 3)])
        self.assertNotEqual(*made)


if __name__ == "__main__":
    unittest.main()
