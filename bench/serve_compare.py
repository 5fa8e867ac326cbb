#!/usr/bin/env python3
"""Requests a second, latency and processor time a picture, beside diffusers behind a plain loop.

    .deps/venv/bin/python bench/serve_compare.py [--requests 48] [--clients 1,4,16] [--max_batch 4]
    .deps/venv/bin/python bench/serve_compare.py --loras 8 [--lora_rank 32]

Both servers have the model of examples/shapes and one thread, and make pictures of 128 x 128 pixels. With --loras so
many clients ask Atelier alone, for pictures that are made together: without a LoRA, all with one, and each with its own.
README.md, beside this file, says what is counted.
"""

import argparse
import base64
import http.server
import io
import json
import os
import pathlib
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
MODEL = REPOSITORY / "examples/shapes/model"
ATELIER = REPOSITORY / "build/release/bin/atelier"
PROMPT = "a red circle left of a blue square on a green ground"
ENVIRONMENT = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
WARM_UP = 2  # requests that are not counted


def serve_diffusers(options):
    """A pipeline behind http.server: one request after the other."""
    import diffusers
    import torch
    torch.set_num_threads(1)
    pipeline = diffusers.QwenImagePipeline.from_pretrained(MODEL, torch_dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)

    class Handler(http.server.BaseHTTPRequestHandler):

        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with torch.inference_mode():
                [picture] = pipeline(asked["prompt"], negative_prompt=" ", width=options.side,
                                     height=options.side, num_inference_steps=options.steps,
                                     true_cfg_scale=options.cfg_scale,
                                     generator=torch.Generator().manual_seed(asked["seed"])).images
            file = io.BytesIO()
            picture.save(file, "PNG")
            body = json.dumps({"data": [{"b64_json": base64.b64encode(file.getvalue()).decode()}]})
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_):
            pass

    class Server(http.server.HTTPServer):
        request_queue_size = 64

    server = Server(("127.0.0.1", 0), Handler)
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()


def start(name, options):
    """A server's process and address."""
    if name == "diffusers":
        words = [sys.executable, __file__, "--serve_diffusers"]
        for flag in ("side", "steps", "cfg_scale"):
            words += [f"--{flag}", str(getattr(options, flag))]
    else:
        words = [str(ATELIER), "serve", "--model_paths", json.dumps([str(MODEL)]), "--port", "0", "--device", "cpu",
                 "--dtype", "float32", "--threads", "1", "--height", str(options.side), "--width", str(options.side),
                 "--num_inference_steps", str(options.steps), "--cfg_scale", str(options.cfg_scale),
                 "--negative_prompt", " ", "--max_batch", str(options.max_batch), "--quiet"]
        if options.lora_dir:
            words += ["--lora_dir", options.lora_dir]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    url = process.stdout.readline().strip()
    if not url:
        raise SystemExit(f"{name} does not start: {process.stderr.read()[-2000:]}")
    if name == "atelier":
        while not is_ready(url):
            time.sleep(0.1)
    return process, url


def is_ready(url):
    try:
        with urllib.request.urlopen(url + "/health") as reply:
            return reply.status == 200
    except urllib.error.HTTPError:
        return False


def ask(url, seed, fields):
    body = json.dumps({"prompt": PROMPT, "seed": seed, "response_format": "b64_json", **fields}).encode()
    request = urllib.request.Request(url + "/v1/images/generations", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as reply:
        return base64.b64decode(json.loads(reply.read())["data"][0]["b64_json"])


def processor_seconds(process):
    """Of a process and all its threads."""
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(process, url, clients, requests, fields_of=lambda client: {}):
    """What so many clients see who ask one thing after another, each with fields of its own."""
    seeds, seconds = queue.Queue(), []
    for seed in range(requests):
        seeds.put(seed)

    def client(fields):
        while True:
            try:
                seed = seeds.get_nowait()
            except queue.Empty:
                return
            begin = time.perf_counter()
            assert ask(url, seed, fields).startswith(b"\x89PNG")
            seconds.append(time.perf_counter() - begin)

    used, begin = processor_seconds(process), time.perf_counter()
    threads = [threading.Thread(target=client, args=(fields_of(number),)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - begin
    assert len(seconds) == requests, "a request failed"
    return {
        "requests_s": requests / took,
        "median_s": statistics.median(seconds),
        "most_s": max(seconds),
        "processor_s": (processor_seconds(process) - used) / requests,
    }


def measure(name, options):
    process, url = start(name, options)
    try:
        for seed in range(WARM_UP):
            ask(url, seed, {})
        return {clients: run(process, url, clients, options.requests) for clients in options.clients}
    finally:
        process.terminate()
        process.wait()


def write_loras(folder, count, rank):
    """Random LoRAs of all linear layers of blocks, which change pictures a little."""
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file
    [weights] = (MODEL / "transformer").glob("*.safetensors")
    with safe_open(weights, "pt") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()
                  if name.startswith("transformer_blocks.") and name.endswith(".weight")}
    for number in range(count):
        torch.manual_seed(number)
        lora = {}
        for name, shape in shapes.items():
            if len(shape) == 2:
                layer = "transformer." + name.removesuffix(".weight")
                lora[f"{layer}.lora_A.weight"] = torch.randn(rank, shape[1]) / shape[1]**0.5
                lora[f"{layer}.lora_B.weight"] = 0.02 * torch.randn(shape[0], rank) / rank**0.5
        save_file(lora, str(pathlib.Path(folder) / f"lora{number}.safetensors"))


def measure_loras(options):
    """Rows of no LoRA, one for all and one each, in turns: what else runs on a machine changes."""
    count = options.max_batch = options.loras
    kinds = {
        "none": lambda client: {"lora": []},
        "one for all": lambda client: {"lora": [{"name": "lora0"}]},
        "one each": lambda client: {"lora": [{"name": f"lora{client}"}]},
    }
    with tempfile.TemporaryDirectory() as options.lora_dir:
        write_loras(options.lora_dir, count, options.lora_rank)
        process, url = start("atelier", options)
        try:
            rows = {name: [] for name in kinds}
            for turn in range(1 + options.turns):
                for name, fields_of in kinds.items():
                    row = run(process, url, count, options.requests, fields_of)
                    if turn > 0:  # the first one reads the files
                        rows[name].append(row)
        finally:
            process.terminate()
            process.wait()
    print(f"LoRAs        requests/s  processor s a picture ({count} clients, rank {options.lora_rank})")
    least = {}
    for name, found in rows.items():
        least[name] = min(row["processor_s"] for row in found)
        print(f"{name:12} {max(row['requests_s'] for row in found):10.2f}  {least[name]:.4f}")
    print(f"one each: {least['one each'] / least['one for all']:.3f} of the processor time of one for all")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=48, help="of each number of clients")
    parser.add_argument("--clients", type=lambda text: [int(part) for part in text.split(",")], default=[1, 4, 16])
    parser.add_argument("--max_batch", type=int, default=1)
    parser.add_argument("--side", type=int, default=128)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--cfg_scale", type=float, default=4.0)
    parser.add_argument("--loras", type=int, help="compare so many LoRAs in one batch instead of servers")
    parser.add_argument("--lora_rank", type=int, default=32)
    parser.add_argument("--turns", type=int, default=3, help="of the comparison of LoRAs")
    parser.add_argument("--serve_diffusers", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.lora_dir = None
    if options.serve_diffusers:
        return serve_diffusers(options)
    if options.loras:
        return measure_loras(options)
    found = {name: measure(name, options) for name in ("diffusers", "atelier")}
    print("server     clients  requests/s  median s  most s  processor s a picture")
    for name, rows in found.items():
        for clients, row in rows.items():
            print(f"{name:10} {clients:7}  {row['requests_s']:10.2f}  {row['median_s']:8.3f}  {row['most_s']:6.3f}  "
                  f"{row['processor_s']:.3f}")
    for clients in options.clients:
        ratio = found["atelier"][clients]["processor_s"] / found["diffusers"][clients]["processor_s"]
        print(f"{clients} clients: {ratio:.2f} of diffusers' processor time a picture")


if __name__ == "__main__":
    main()
