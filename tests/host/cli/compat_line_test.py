#!/usr/bin/env python3
"""Pastes whole command lines of other programs behind `atelier`."""

import json
import shlex
import unittest

import program
from tiny_run import FolderTest, write_dataset

QWEN = ("Qwen/Qwen-Image:transformer/diffusion_pytorch_model*.safetensors,"
        "Qwen/Qwen-Image:text_encoder/model*.safetensors,"
        "Qwen/Qwen-Image:vae/diffusion_pytorch_model.safetensors")
TARGETS = "to_q,to_k,to_v,add_q_proj,img_mlp.net.2,txt_mod.1"

# As DiffSynth-Studio's page on training has it.
FULL = rf"""
accelerate launch --config_file examples/qwen_image/model_training/full/accelerate_config_zero2offload.yaml \
  examples/qwen_image/model_training/train.py \
  --dataset_base_path data/example_image_dataset \
  --dataset_metadata_path data/example_image_dataset/metadata.csv \
  --max_pixels 1048576 \
  --dataset_repeat 50 \
  --model_id_with_origin_paths "{QWEN}" \
  --learning_rate 1e-5 \
  --num_epochs 2 \
  --remove_prefix_in_ckpt "pipe.dit." \
  --output_path "./models/train/Qwen-Image_full" \
  --trainable_models "dit" \
  --use_gradient_checkpointing \
  --find_unused_parameters
"""

LORA = rf"""
accelerate launch examples/qwen_image/model_training/train.py --dataset_base_path data --max_pixels 1048576 \
  --dataset_metadata_path data/metadata.csv --dataset_repeat 50 --model_id_with_origin_paths "{QWEN}" \
  --learning_rate 1e-4 --num_epochs 5 --remove_prefix_in_ckpt "pipe.dit." --output_path ./models/train/lora \
  --lora_base_model dit --lora_target_modules "{TARGETS}" --lora_rank 32 --use_gradient_checkpointing \
  --dataset_num_workers 8 --find_unused_parameters
"""

# As its script for training on 4-bit weights has it.
FOUR_BITS = r"""
accelerate launch examples/qwen_image/model_training/train.py \
  --dataset_base_path data/diffsynth_example_dataset/qwen_image/Qwen-Image-2512 \
  --dataset_metadata_path data/diffsynth_example_dataset/qwen_image/Qwen-Image-2512/metadata.csv \
  --max_pixels 1048576 \
  --dataset_repeat 50 \
  --model_id_with_origin_paths "Qwen/Qwen-Image-2512:transformer/diffusion_pytorch_model*.safetensors,Qwen/Qwen-Image:text_encoder/model*.safetensors,Qwen/Qwen-Image:vae/diffusion_pytorch_model.safetensors" \
  --quant_options "Qwen/Qwen-Image-2512:transformer/diffusion_pytorch_model*.safetensors:bitsandbytes_nf4/img_mod.1,txt_mod.1,norm_out.linear,img_in,txt_in,proj_out,timestep_embedder.linear_1,timestep_embedder.linear_2" \
  --learning_rate 1e-4 \
  --num_epochs 5 \
  --remove_prefix_in_ckpt "pipe.dit." \
  --output_path "./models/train/Qwen-Image-2512_quant_lora" \
  --lora_base_model "dit" \
  --lora_target_modules "to_q,to_k,to_v,add_q_proj,add_k_proj,add_v_proj,to_out.0,to_add_out,img_mlp.net.2,img_mod.1,txt_mlp.net.2,txt_mod.1" \
  --lora_rank 32 \
  --use_gradient_checkpointing \
  --dataset_num_workers 8 \
  --find_unused_parameters
"""

KOHYA = r"""
accelerate launch --num_cpu_threads_per_process 1 --mixed_precision bf16 lumina_train_network.py \
  --pretrained_model_name_or_path="lumina-2.safetensors" --gemma2="gemma-2.safetensors" --ae="ae.safetensors" \
  --dataset_config="DATASET" --output_dir="./output" --output_name="my_lora" --save_model_as=safetensors \
  --network_module=networks.lora_lumina --network_dim=8 --network_alpha=8 --learning_rate=1e-4 \
  --optimizer_type="AdamW" --lr_scheduler="constant" --timestep_sampling="nextdit_shift" \
  --discrete_flow_shift=6.0 --model_prediction_type="raw" \
  --system_prompt="You are an assistant designed to generate high-quality images based on user prompts." \
  --max_train_epochs=10 --save_every_n_epochs=1 --mixed_precision="bf16" --gradient_checkpointing \
  --cache_latents --cache_text_encoder_outputs
"""

DATASET = """
[general]
enable_bucket = true
caption_extension = ".txt"

[[datasets]]
resolution = [1024, 768]
batch_size = 2

  [[datasets.subsets]]
  image_dir = "images of mine"
  num_repeats = 10
"""


class CompatLine(FolderTest):

    def answer(self, line, code=0):
        """The answer's words, each flag with its values: ("generate", {"--lora": ["a", "b"]})."""
        self.result = program.run(*shlex.split(line), code=code, cwd=self.dir)
        words = shlex.split(self.result.stdout.replace("\\\n", " "))
        words = words[words.index("--") if "--" in words else 0:]
        flags = {}
        for word in words[2:]:
            if word.startswith("--"):
                name = word
                flags.setdefault(name, [])
            else:
                flags[name].append(word)
        return words[1], flags

    def paste(self, line, code=0, before=(), **environment):
        """Runs `atelier LINE` as a shell would; the flags of the answer, by name."""
        words = shlex.split(line.replace("\\\n", " "))
        self.result = program.run(*before, *words, code=code, cwd=self.dir, **environment)
        answer = shlex.split(self.result.stdout.replace("\\\n", " "))
        begin = answer.index("atelier")
        self.variables, words = answer[:begin], answer[begin + 1:]
        self.launch = words[1:words.index("--")] if words[0] == "launch" else None
        words = words[words.index("--") + 1:] if words[0] == "launch" else words
        self.assertEqual("train", words[0])
        flags, name = {}, None
        for word in words[1:]:
            if word.startswith("--"):
                name = word
                self.assertNotIn(name, flags, "each flag stands there once")
                flags[name] = True
            else:
                flags[name] = word
        return flags

    def write(self, name, text):
        path = self.dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def told(self, *parts):
        for part in parts:
            self.assertEqual(1, self.result.stderr.count(part), f"{part!r} in\n{self.result.stderr}")

    def test_a_folder_of_examples_names_the_family(self):
        flags = self.paste("accelerate launch examples/wanvideo/model_training/train.py --dataset_base_path data "
                           "--lora_base_model dit --max_timestep_boundary 1 --min_timestep_boundary 0.417")
        self.assertEqual(flags, {"--plugin": "wan", "--dataset_base_path": "data", "--lora_base_model": "dit",
                                 "--max_timestep_boundary": "1", "--min_timestep_boundary": "0.417",
                                 "--max_grad_norm": "0", "--num_frames": "81", "--keep_frame_rate": True})
        self.told("presets of DiffSynth-Studio that are others here: --max_grad_norm 0, --num_frames 81, --keep_frame_rate")
        self.paste("accelerate launch examples/others_video/train.py --dataset_base_path data", code=2)
        self.assertIn("--plugin is missing", self.result.stderr)

    def test_full_training_of_the_page(self):
        file = "examples/qwen_image/model_training/full/accelerate_config_zero2offload.yaml"
        self.paste(FULL, code=2)
        self.told(f"--config_file: '{file}' is not there" if " " in file else f"{file} is not there")
        settings = (program.REPOSITORY / "tests/data/launchers/accelerate_config_zero2offload.yaml").read_text()
        self.write(file, settings)
        flags = self.paste(FULL)
        self.assertEqual(flags, {
            "--plugin": "qwen_image", "--dataset_base_path": "data/example_image_dataset",
            "--dataset_metadata_path": "data/example_image_dataset/metadata.csv", "--max_pixels": "1048576",
            "--dataset_repeat": "50", "--model_id_with_origin_paths": QWEN, "--learning_rate": "1e-5",
            "--num_epochs": "2", "--output_path": "./models/train/Qwen-Image_full", "--trainable_models": "dit",
            "--use_gradient_checkpointing": True, "--max_grad_norm": "0"})
        self.assertEqual(self.launch, ["--config_file", file])
        self.told("atelier launch --config_file", "--remove_prefix_in_ckpt", "--find_unused_parameters")
        self.assertNotIn("error", self.result.stderr)
        self.write(file, settings.replace("gradient_accumulation_steps: 1", "gradient_clipping: 0.5"))
        self.assertNotIn("--max_grad_norm", self.paste(FULL))

    def test_every_way_to_start_a_script(self):
        flags = self.paste(LORA)
        rest = LORA.split("examples/", 1)[1]
        for start in ("python", "python3 -u", "torchrun --standalone --nproc_per_node=1",
                      "python -m torch.distributed.run --nproc_per_node 1", "deepspeed --num_gpus 1", "env A=1 python",
                      "accelerate launch --num_processes 1 --num_machines=1 --mixed_precision no"):
            with self.subTest(start):
                self.assertEqual(flags, self.paste(f"{start} examples/{rest}"))
                self.assertIsNone(self.launch)
        self.assertEqual(flags, self.paste("examples/" + rest))
        self.assertEqual(flags, self.paste(LORA, before=["train"]))

    def test_launchers_of_several_processes(self):
        rest, flags = LORA.split("examples/", 1)[1], self.paste(LORA)
        self.assertIsNone(self.launch)
        self.write("a.yaml", "distributed_type: MULTI_GPU\nnum_processes: 8\n")
        for start, launch in {
                "accelerate launch --num_processes 8 --multi_gpu": "--nproc_per_node 8",
                "accelerate launch --multi_gpu --main_process_port=29501":
                    "--master_port 29501 --nproc_per_node auto",
                "accelerate launch --config_file a.yaml --num_processes 2": "--config_file a.yaml --nproc_per_node 2",
                "accelerate launch --num_processes 16 --num_machines 2 --machine_rank 1 --main_process_ip node1":
                    "--master_addr node1 --nproc_per_node 8 --nnodes 2 --node_rank 1",
                "torchrun --standalone --nproc-per-node=gpu": "--nproc_per_node auto",
                "torchrun --nnodes 2 --node-rank 0 --master-addr node1 --master-port 29500 --nproc_per_node 8":
                    "--master_addr node1 --master_port 29500 --nproc_per_node 8 --nnodes 2 --node_rank 0",
                "python -m torch.distributed.run --nproc_per_node 4 --max_restarts 3": "--nproc_per_node 4",
                "deepspeed --num_gpus 8 --master_port 29501": "--nproc_per_node 8 --master_port 29501"}.items():
            with self.subTest(start):
                self.assertEqual(flags, self.paste(f"{start} examples/{rest}"))
                self.assertEqual(launch.split(), self.launch)
                self.assertIn(f" is atelier launch {launch} here", self.result.stderr)
        self.paste(f"accelerate launch --gpu_ids 2,3 --num_processes 2 examples/{rest}")
        self.assertEqual(["CUDA_VISIBLE_DEVICES=2,3"], self.variables)
        self.paste(f"torchrun --max_restarts 3 --nproc_per_node 4 examples/{rest}")
        self.told("--max_restarts 3 is left out")
        flags = self.paste("accelerate launch --use_deepspeed --zero_stage 2 --offload_optimizer_device cpu "
                           f"--num_processes 8 --gradient_accumulation_steps 4 examples/{rest}")
        self.assertEqual(("4", True), (flags["--gradient_accumulation_steps"], flags["--optimize_on_cpu"]))
        self.paste(f"torchrun --nnodes 2 --nproc_per_node 8 --rdzv_endpoint node1:29400 examples/{rest}", code=2)
        self.told("nothing says which of 2 machines this is")
        self.paste(f"deepspeed --include localhost:0,1 examples/{rest}", code=2)
        self.told("CUDA_VISIBLE_DEVICES=0,1 in front")

    def test_a_line_behind_launch_is_run(self):
        """Down to the first mistake that both processes find when they read files, told once."""
        rest = LORA.split("examples/", 1)[1].replace("\\\n", " ")
        for start in ("A=1 accelerate launch --num_processes 2", "python"):
            with self.subTest(start):
                words = shlex.split(f"{start} examples/{rest}")
                result = program.run("launch", *words, code=2, cwd=self.dir)
                self.assertEqual(1, result.stderr.count("error: "), result.stderr)
                self.assertIn("model files are not there", result.stderr)
                self.assertIn("train \\\n  --plugin qwen_image", result.stderr)
                self.assertEqual("", result.stdout)
        result = program.run("launch", "torchrun", "--nnodes", "1:4", "examples/qwen_image/train.py", code=2)
        self.assertIn("--nnodes: 1:4 is no whole number", result.stderr)

    def test_the_two_stages_and_the_others(self):
        stages = LORA.replace("--dataset_repeat 50", "--dataset_repeat 1 --task sft:data_process")
        self.assertEqual("sft:data_process", self.paste(stages)["--task"])
        self.assertEqual("sft:data_process", self.paste(stages.replace("sft:data", "data"))["--task"])
        self.told("--task data_process is --task sft:data_process here")
        self.assertNotIn("--max_grad_norm", self.paste(stages))
        self.assertEqual("sft:train", self.paste(stages.replace("data_process", "train"))["--task"])
        self.told("--task sft:train needs what its first stage, :data_process, writes")
        more = (f' --fp8_models "{QWEN}" --use_gradient_checkpointing_offload --enable_model_cpu_offload'
                ' --preset_lora_path old/epoch-4.safetensors --preset_lora_model dit --height 512 --width 512'
                ' --initialize_model_on_cpu --enable_csv_log --enable_wandb_log --extra_inputs ""')
        flags = self.paste(LORA.strip() + more)
        self.assertEqual((QWEN, "old/epoch-4.safetensors", "512"),
                         tuple(flags[f"--{name}"] for name in ("fp8_models", "preset_lora_path", "height")))
        self.told("--initialize_model_on_cpu", "--enable_wandb_log")
        # A list of shards, as the page writes it over many lines.
        paths = '[\n ["t-1.safetensors",\n "t-2.safetensors"],\n "vae.safetensors"\n]'
        flags = self.paste(f"python examples/qwen_image/model_training/train.py --model_paths '{paths}' "
                           "--dataset_base_path data --trainable_models dit")
        self.assertEqual([["t-1.safetensors", "t-2.safetensors"], "vae.safetensors"],
                         json.loads(flags["--model_paths"]))

    def test_the_script_for_four_bits_is_taken_and_planned(self):
        flags = self.paste(FOUR_BITS)
        self.assertTrue(flags["--quant_options"].endswith("timestep_embedder.linear_2"))
        self.assertNotIn("--remove_prefix_in_ckpt", flags)
        data = self.dir / flags["--dataset_base_path"]
        data.parent.mkdir(parents=True)
        write_dataset(data, count=2)
        for model in ("Qwen-Image", "Qwen-Image-2512"):
            program.write_tiny_model(self.dir / "models/Qwen" / model)
        words = [word for pair in flags.items() for word in pair if word is not True]
        out = self.dir / "plan.json"
        program.run("plan", "train", *words, "--json", str(out), "--device_profile", "h200", code=0, cwd=self.dir)
        parts = {part["name"]: part["storage"] for part in json.loads(out.read_text())["components"]}
        self.assertEqual(("nf4", "plain"), (parts["dit"], parts["text_encoder"]))

    def test_what_would_be_another_run_is_refused_and_the_rest_is_there(self):
        flags = self.paste(LORA.replace("launch", "launch --hostfile hosts").strip() +
                           ' --quant_options "a:torchao_int4_w4a16" --framewise_decoding --customized_optimizer x.Lion', code=2)
        self.assertEqual("32", flags["--lora_rank"])
        self.told("--hostfile: hosts would make another run of it", "--quant_options", "--framewise_decoding",
                  "--customized_optimizer", "4 mistakes")
        self.paste(LORA.replace("--lora_rank 32", "--lora_rnk 32 --learning_rate much"), code=2)
        self.told("--lora_rnk is not known to train; did you mean --lora_rank?", '"much" is no number')
        self.paste("accelerate launch --config_file x.yaml", code=2)
        self.told("names no script")

    def test_only_what_the_family_has_is_answered_with_0(self):
        """Shapes of DiffSynth-Studio's lines: what is trained, the inputs, and what is refused of them."""
        wan, qwen = "examples/wanvideo/model_training/train.py", "examples/qwen_image/model_training/train.py"
        no_input, no_component = "{!r} is no input of", "{!r} is no component of"
        for script, trained, inputs, refused in (
                (wan, "--lora_base_model dit", "", []),
                (wan, "--trainable_models dit", "input_image", []),
                (wan, "--trainable_models dit.blocks.0.block.self_attn.q", "input_image", []),
                (wan, "--lora_base_model dit", "seed,rand_device,num_inference_steps,cfg_scale --task direct_distill", []),
                (wan, "--trainable_models vace", "vace_video,vace_reference_image", []),
                (wan, "--lora_base_model vace", "vace_video", []),
                (wan, "--trainable_models animate_adapter", "", []),
                (wan, "--trainable_models motion_controller", "motion_bucket_id", []),
                (wan, "--lora_base_model dit", "control_video,reference_image", []),
                (wan, "--lora_base_model dit", "input_image,camera_control_speed", []),
                (wan, "--trainable_models controlnet", "canny_image", [no_component, "controlnet", no_input, "canny_image"]),
                (qwen, "--trainable_models dit", "edit_image", []),
                (qwen, "--lora_base_model dit", "context_image", []),
                (qwen, "--trainable_models blockwise_controlnet", "blockwise_controlnet_image", []),
                (qwen, "--lora_base_model dit", "eligen_entity_masks,eligen_entity_prompts", []),
                (qwen, "--lora_base_model dit", "layer_num,layer_input_image", []),
                (qwen, "--lora_base_model dit", "sketch_image,sketch_scale",
                 [no_input, "sketch_image", no_input, "sketch_scale"])):
            with self.subTest(f"{script} {trained} {inputs}"):
                line = f"accelerate launch {script} --dataset_base_path data {trained}"
                flags = self.paste(line + (f" --extra_inputs {inputs}" if inputs else ""), code=2 if refused else 0)
                self.told(*(what.format(name).replace("'", '"') for what, name in zip(refused[::2], refused[1::2])))
                self.assertNotIn("did you mean", self.result.stderr)
                self.assertIn(trained.split()[0], flags)
        self.paste(f"python {wan} --dataset_base_path data --lora_base_model dit --extra_inputs input_image")
        self.told("--extra_inputs input_image is taken by variants *i2v-*|", " alone; the files of the model say which")
        self.paste(f"python {qwen} --dataset_base_path data", code=2)
        self.told("nothing is trained")

    def test_the_family_that_is_missing_is_told(self):
        flags = self.paste(LORA.replace("qwen_image", "mine"), code=2)
        self.assertNotIn("--plugin", flags)
        self.told("--plugin is missing")
        self.assertEqual("lumina2", self.paste(LORA.replace("qwen_image", "mine").strip() +
                                               " --plugin lumina2")["--plugin"])
        self.paste(LORA.strip() + " --plugin lumina3", code=2)
        self.told("did you mean lumina2?")

    def test_a_lora_of_kohyas_trainers(self):
        (self.dir / "data set.toml").write_text(DATASET)
        flags = self.paste(KOHYA.replace("DATASET", "data set.toml"))
        self.assertEqual(["lumina-2.safetensors", "gemma-2.safetensors", "ae.safetensors"],
                         json.loads(flags.pop("--model_paths")))
        self.assertEqual(flags, {
            "--plugin": "lumina2", "--dtype": "bfloat16", "--enable_bucket": True, "--caption_extension": ".txt",
            "--max_bucket_reso": "1024",
            "--batch_size": "2", "--dataset_base_path": "images of mine", "--dataset_repeat": "10",
            "--max_pixels": str(1024 * 768), "--output_path": "./output", "--lora_base_model": "dit",
            "--lora_rank": "8", "--lora_alpha": "8", "--learning_rate": "1e-4", "--optimizer_type": "AdamW",
            "--lr_scheduler": "constant", "--timestep_sampling": "uniform_dynamic_shift", "--num_epochs": "10",
            "--system_prompt":
                "You are an assistant designed to generate high-quality images based on user prompts.",
            "--use_gradient_checkpointing": True, "--lora_format": "kohya", "--weighting_scheme": "none"})
        self.told("--network_dim=8 is --lora_rank 8 here", "--cache_latents is left out", "--output_name",
                  "--tokenizer_path", "--discrete_flow_shift", "presets of kohya's trainers",
                  "--num_cpu_threads_per_process 1 is left out", "--save_every_n_epochs=1 is left out")

    def test_kohyas_scripts_without_a_network_train_the_denoiser_whole(self):
        line = ("accelerate launch --mixed_precision bf16 SCRIPT --pretrained_model_name_or_path m.safetensors "
                "--gemma2 g.safetensors --ae a.safetensors --train_data_dir d --full_bf16 --fused_backward_pass "
                "--learning_rate 1e-5 --optimizer_type adafactor --optimizer_args RELATIVE scale_parameter=False "
                "warmup_init=False ")
        full = line.replace("SCRIPT", "lumina_train.py")
        flags = self.paste(full.replace("RELATIVE", "relative_step=False"))
        self.assertLessEqual({
            "--plugin": "lumina2", "--trainable_models": "dit", "--optimizer_type": "Adafactor",
            "--optimizer_args": "scale_parameter=False", "--optimize_on_cpu": True}.items(), flags.items())
        self.assertNotIn("--lora_base_model", flags)
        self.assertNotIn("--lora_rank", flags)
        self.told("lumina_train.py is --trainable_models dit here", "relative_step=False is left out",
                  "warmup_init=False is left out")
        self.paste(full.replace("RELATIVE", "relative_step=True"), code=2)
        self.told('"relative_step" is not known')
        self.paste(line.replace("SCRIPT", "lumina_train_network.py").replace("RELATIVE", ""), code=2)
        self.told("nothing is trained")

    def test_a_config_file_of_kohyas_trainers_is_read(self):
        self.write("kohya.toml", """
pretrained_model_name_or_path = "m.safetensors"
network_module = "networks.lora_lumina"
network_dim = 16
network_alpha = 8.0
learning_rate = 1e-4
cache_latents = true
flip_aug = false
logging_dir = ""
network_args = []
dynamo_backend = "no"
noise_offset_type = "Original"
[dataset]
train_data_dir = "of mine"
optimizer_args = ["weight_decay=0.1", "betas=0.9,0.95"]
resolution = "512,512"
gradient_checkpointing = true
""")
        for name in ("kohya.toml", "kohya"):
            flags = self.paste(f"accelerate launch --mixed_precision bf16 lumina_train_network.py --config_file {name} "
                               "--network_dim 32")
            self.assertGreaterEqual(flags.items(), {
                "--plugin": "lumina2", "--dtype": "bfloat16", "--lora_base_model": "dit", "--lora_rank": "32",
                "--lora_alpha": "8", "--learning_rate": "1e-04", "--dataset_base_path": "of mine",
                "--weight_decay": "0.1", "--adam_beta2": "0.95", "--height": "512", "--width": "512",
                "--use_gradient_checkpointing": True, "--lora_format": "kohya"}.items())
            self.assertIsNone(self.launch)
            self.told(f"--config_file {name} is read, and its flags stand here",
                      "kohya.toml:5: --network_alpha 8 is --lora_alpha 8",
                      "kohya.toml:7: --cache_latents is left out",
                      "kohya.toml:14: --train_data_dir 'of mine' is --dataset_base_path")
        line = "python lumina_train_network.py --config_file "
        self.write("wrong.toml", "network_module = 'n'\ntrain_data_dir = 'd'\nnoise_offset = 0.1\nlearning_rat = 1\n")
        self.paste(line + "wrong.toml", code=2)
        self.told("wrong.toml:3: --noise_offset 0.1 is left out", "--learning_rat is not known to train")
        self.paste(line + "absent.toml", code=2)
        self.told("--config_file: absent.toml", "run this where the file is")
        self.write("wrong.toml", "[general\n")
        self.paste(line + "wrong", code=2)
        self.told("--config_file: wrong.toml:1: ", "TOML is expected")

    def test_values_that_mean_something_else_to_kohyas_trainers(self):
        line = "python lumina_train_network.py --network_module n --train_data_dir d "
        flags = self.paste(line + "--max_train_steps 300 --lr_warmup_steps 0.05 --weighting_scheme logit_normal")
        self.assertEqual(("15", "none"), (flags["--lr_warmup_steps"], flags["--weighting_scheme"]))
        self.told("--lr_warmup_steps 0.05 is --lr_warmup_steps 15 here",
                  "--weighting_scheme logit_normal is --weighting_scheme none here")
        self.assertEqual("800", self.paste(line + "--lr_warmup_steps 0.5")["--lr_warmup_steps"])
        self.assertEqual("20", self.paste(line + "--lr_warmup_steps 20")["--lr_warmup_steps"])
        self.paste(line + "--max_train_epochs 2 --lr_warmup_steps 0.05 --weighting_scheme mode "
                   "--timestep_sampling sigma", code=2)
        self.told('"0.05" is no whole number; steps are meant, not a part of the run: 0.05 of 1000 steps is 50',
                  "noise levels are drawn so by --timestep_sampling mode, with --weighting_scheme none")
        self.paste(line + "--optimizer_type PagedAdamW8bit", code=2)
        self.told('"PagedAdamW8bit" is not one of "AdamW", "AdamW8bit", "Adafactor", "Prodigy"')
        self.assertNotIn("; optimizer", self.result.stderr)

    def test_epochs_of_kohyas_trainers_override_steps(self):
        line = "python lumina_train_network.py --network_module n --train_data_dir d "
        for steps in ("--max_train_steps 30", "--max_train_steps=30"):
            flags = self.paste(f"{line} --max_train_epochs 2 {steps}")
            self.assertEqual("2", flags["--num_epochs"])
            self.assertNotIn("--max_train_steps", flags)
            self.told("--max_train_steps is left out: epochs say how long the run is")
        flags = self.paste(line + "--max_train_steps 30")
        self.assertEqual("30", flags["--max_train_steps"])
        self.assertNotIn("--num_epochs", flags)
        self.assertNotIn("left out: epochs", self.result.stderr)

    def test_buckets_of_kohyas_trainers_end_at_1024(self):
        line = "python lumina_train_network.py --network_module n --train_data_dir d --resolution 1024 "
        self.assertEqual("1024", self.paste(line + "--enable_bucket")["--max_bucket_reso"])
        self.told("presets of kohya's trainers that are others here", "--max_bucket_reso 1024")
        self.assertEqual("1536", self.paste(line + "--enable_bucket --max_bucket_reso 1536")["--max_bucket_reso"])
        for others in ("", "--enable_bucket --bucket_no_upscale"):
            self.assertNotIn("--max_bucket_reso", self.paste(line + others))

    def test_folders_of_kohyas_trainers_say_how_often_images_are_learnt(self):
        line = "python lumina_train_network.py --network_module n --train_data_dir 'of mine' "

        def dataset(line=line, code=0):
            flags = self.paste(line, code)
            return flags.get("--dataset_base_path"), flags.get("--dataset_repeat")

        self.assertEqual(("of mine", None), dataset())
        self.told('"of mine" is not there: run this where it is, as the N of a folder N_words in it is --dataset_repeat')
        self.write("of mine/a.png", "")
        self.assertEqual(("of mine", None), dataset())
        self.assertNotIn("N_words", self.result.stderr)
        self.write("of mine/10_a cat/a.png", "")
        self.write("of mine/others/a.png", "")
        self.assertEqual(("of mine/10_a cat", "10"), dataset())
        self.assertEqual(("of mine/10_a cat", "10"), dataset(line + "--dataset_repeats 3"))
        self.told("is --dataset_base_path 'of mine/10_a cat' --dataset_repeat 10 here")
        # Equally often, and then beside what is not learnt there.
        self.write("even/3_a/a.png", "")
        self.write("even/3_b/a.png", "")
        self.write("even/read me.txt", "")
        self.write("even/.cache/a.png", "")
        even = line.replace("of mine", "even")
        self.assertEqual(("even", "3"), dataset(even))
        self.write("even/a.png", "")
        self.assertEqual(("even", None), dataset(even, code=2))
        self.told("--train_data_dir: even holds 2 folders N_words that are not learnt alike", "join them into one folder")
        self.write("of mine/2_dog/a.png", "")
        self.assertEqual(("of mine", None), dataset(code=2))
        self.told("holds 2 folders N_words that are not learnt alike")
        # A file of the dataset says it all.
        self.write("d.toml", DATASET)
        self.assertEqual(("images of mine", "10"), dataset(line + "--dataset_config d.toml"))
        self.told("is left out: the dataset is that of --dataset_config")
        self.assertEqual(("of mine", "3"), dataset(line + "--in_json m.json --dataset_repeats 3"))

    def test_presets_of_kohyas_trainers_are_written_down(self):
        flags = self.paste("python lumina_train_network.py --pretrained_model_name_or_path m.safetensors "
                           "--network_module networks.lora_lumina --train_data_dir data --resolution 512 "
                           "--min_timestep 200 --max_timestep 900 --optimizer_type adamw8bit "
                           '--optimizer_args "weight_decay=0.1" "betas=0.9,0.95" --save_precision fp16 '
                           "--weighting_scheme uniform --unet_lr 5e-5 --sdpa --seed 7")
        self.assertLessEqual({
            "--lora_rank": "4", "--lora_alpha": "1", "--timestep_sampling": "shift", "--discrete_flow_shift": "6",
            "--weighting_scheme": "none", "--caption_extension": ".caption", "--max_train_steps": "1600",
            "--dtype": "float32", "--height": "512", "--width": "512", "--max_timestep_boundary": "0.8",
            "--min_timestep_boundary": "0.1", "--optimizer_type": "AdamW8bit", "--weight_decay": "0.1",
            "--adam_beta1": "0.9", "--adam_beta2": "0.95", "--save_dtype": "float16", "--learning_rate": "5e-5",
            "--seed": "7", "--dataset_base_path": "data"}.items(), flags.items())
        self.told("--sdpa")

    def test_musubis_datasets_of_clips_become_flags(self):
        clips = '''
[general]
resolution = [960, 544]
caption_extension = ".txt"
batch_size = 1
enable_bucket = true

[[datasets]]
video_directory = "clips of mine"
cache_directory = "encoded"
target_frames = [83]
frame_extraction = "uniform"
frame_sample = 4
max_frames = 129
source_fps = 30.0
num_repeats = 2
'''
        (self.dir / "d.toml").write_text(clips)
        flags = self.paste(KOHYA.replace("DATASET", "d.toml"))
        self.assertGreaterEqual(flags.items(), {
            "--dataset_base_path": "clips of mine", "--cache_path": "encoded", "--num_frames": "81",
            "--frame_extraction": "uniform", "--frame_sample": "4", "--source_fps": "30", "--dataset_repeat": "2",
            "--max_pixels": str(960 * 544), "--enable_bucket": True}.items())
        self.assertNotIn("--keep_frame_rate", flags)
        (self.dir / "d.toml").write_text(clips.replace('"uniform"', '"full"').replace("source_fps = 30.0", ""))
        flags = self.paste(KOHYA.replace("DATASET", "d.toml"))
        self.assertGreaterEqual(flags.items(), {
            "--num_frames": "129", "--frame_extraction": "head", "--keep_frame_rate": True}.items())
        # Rounded down and each once, as there.
        (self.dir / "d.toml").write_text(clips.replace("[83]", "[45, 1, 28, 3, 25]"))
        self.assertEqual("1,25,45", self.paste(KOHYA.replace("DATASET", "d.toml"))["--num_frames"])
        (self.dir / "d.toml").write_text(clips.replace("max_frames", "control_directory"))
        self.paste(KOHYA.replace("DATASET", "d.toml"), code=2)
        self.told("control_directory is left out: a metadata file names both")
        for wrong in ("1979-05-27", "25, 0", '"a"'):
            (self.dir / "d.toml").write_text(clips.replace("[83]", f"[{wrong}]"))
            self.paste(KOHYA.replace("DATASET", "d.toml"), code=2)
            self.told("target_frames is left out")
        (self.dir / "d.toml").write_text("[[datasets]]\nvideo_jsonl_file = 'a.jsonl'\n")
        self.paste(KOHYA.replace("DATASET", "d.toml"), code=2)
        self.told("columns video_path, image_path and caption are called video, image and prompt")

    def test_scripts_that_make_clips_become_generate(self):
        files = "--dit d.safetensors --vae v.safetensors --t5 t.pth"
        command, flags = self.answer(
            f"python src/musubi_tuner/wan_generate_video.py --fp8 --fp8_t5 --task t2v-1.3B --video_size 832 480 "
            f"--video_length 81 --infer_steps 20 --prompt 'a cat' --save_path p/o.mp4 --output_type both {files} "
            "--attn_mode torch --sample_solver vanilla --cfg_skip_mode none")
        self.assertEqual("generate", command)
        self.assertEqual(["d.safetensors", "v.safetensors", "t.pth"], json.loads(flags.pop("--model_paths")[0]))
        self.assertEqual(flags, {
            "--plugin": ["wan"], "--storage": ["dit=fp8,text_encoder=fp8"], "--height": ["832"], "--width": ["480"],
            "--num_frames": ["81"], "--num_inference_steps": ["20"], "--prompt": ["a cat"], "--output": ["p/o.mp4"],
            "--solver": ["euler"]})
        self.told("--task t2v-1.3B is left out", "latents are not written", "--attn_mode torch is left out")
        # Two denoisers: the one of more noise is the first here.
        command, flags = self.answer(
            f"python wan_generate_video.py --task i2v-A14B --dit_high_noise h.safetensors {files} --image_path a.png "
            "--prompt p --save_path out --lora_weight a.st b.st --lora_multiplier 1 0.5 --guidance_scale 3.5 "
            "--lora_weight_high_noise c.st --guidance_scale_high_noise 4 --timestep_boundary 0.9")
        self.assertEqual({"h.safetensors": {"component": "dit"}, "d.safetensors": {"component": "dit2"}},
                         json.loads(flags["--model_hints"][0]))
        self.assertLessEqual({
            "--lora": ["a.st:1@dit2", "b.st:0.5@dit2", "c.st@dit"], "--cfg_scale": ["4"], "--cfg_scale_2": ["3.5"],
            "--switch_boundary": ["0.9"], "--input_image": ["a.png"], "--output": ["out/out.mp4"],
            "--height": ["256"], "--width": ["256"]}.items(), flags.items())
        # The repository of the model itself.
        command, flags = self.answer(
            "torchrun --nproc_per_node=8 generate.py --task t2v-A14B --size 832*480 --ckpt_dir ./Wan2.2-T2V-A14B "
            "--dit_fsdp --t5_fsdp --ulysses_size 8 --frame_num 17 --base_seed 3 --sample_guide_scale 4 --prompt p")
        self.assertEqual(flags, {
            "--plugin": ["wan"], "--height": ["480"], "--width": ["832"], "--sequence_parallel": ["8"],
            "--num_frames": ["17"], "--seed": ["3"], "--cfg_scale": ["4"], "--prompt": ["p"],
            "--model_paths": ['["./Wan2.2-T2V-A14B"]']})
        self.assertIn("launch \\\n  --nproc_per_node 8", self.result.stdout)

    def test_prodigys_published_arguments_are_taken(self):
        flags = self.paste("accelerate launch lumina_train_network.py --pretrained_model_name_or_path l.st --train_data_dir d "
                           "--network_module n --optimizer_type prodigy --learning_rate 1 --timestep_sampling nextdit_shift --optimizer_args "
                           "decouple=True weight_decay=0.05 d_coef=2 use_bias_correction=True safeguard_warmup=True betas=0.9,0.99")
        self.assertLessEqual({
            "--optimizer_type": "Prodigy", "--weight_decay": "0.05", "--adam_beta2": "0.99",
            "--optimizer_args": "decouple=True,d_coef=2,use_bias_correction=True,safeguard_warmup=True"}.items(), flags.items())

    def test_clips_of_a_sound_or_a_pose_become_generate(self):
        command, flags = self.answer(
            "python generate.py --audio a.wav --task s2v-14B --size 1024*704 --ckpt_dir ./Wan2.2-S2V-14B/ "
            "--offload_model True --convert_model_dtype --prompt p --image a.png --pose_video p.mp4 --num_clip 2 "
            "--infer_frames 80 --start_from_ref")
        self.assertEqual(flags, {
            "--plugin": ["wan"], "--model_paths": ['["./Wan2.2-S2V-14B/"]'], "--prompt": ["p"], "--input_image": ["a.png"],
            "--input_audio": ["a.wav"], "--s2v_pose_video": ["p.mp4"], "--num_frames": ["157"], "--init_first_frame": []})
        self.told("--size 1024*704 is left out", "--infer_frames 80 is left out")
        self.answer("python generate.py --task s2v-14B --ckpt_dir Wan2.2-S2V-14B/weights --prompt p --image a.png --enable_tts "
                    "--tts_text t --infer_frames 48 --num_clip 0 --src_root_path r", code=2)
        self.told("without --size", "--enable_tts is left out: no speech", "--tts_text t is left out", "--infer_frames 48 is left out",
                  "--num_clip 0: no number of clips", "the family has no inputs of such a folder", "5 mistakes")
        # The files of a folder that its preparation writes.
        line = "python generate.py --task animate-14B --ckpt_dir ./Wan2.2-Animate-14B/ --src_root_path ./r/ --refert_num 1 "
        pose = {"--plugin": ["wan"], "--model_paths": ['["./Wan2.2-Animate-14B/"]'], "--input_image": ["./r/src_ref.png"],
                "--animate_pose_video": ["./r/src_pose.mp4"], "--animate_face_video": ["./r/src_face.mp4"],
                "--prev_segment_conditioning_frames": ["1"], "--prompt": ["视频中的人在做动作"], "--solver": ["unipc"]}
        self.assertEqual(pose, self.answer(line)[1])
        self.told("presets of generate.py that are others here: --prompt 视频中的人在做动作, --solver unipc")
        command, flags = self.answer(line + "--replace_flag --use_relighting_lora --frame_num 77 --sample_solver dpm++")
        self.assertEqual(flags, pose | {
            "--animate_inpaint_video": ["./r/src_bg.mp4"], "--animate_mask_video": ["./r/src_mask.mp4"],
            "--lora": ["./Wan2.2-Animate-14B/relighting_lora.ckpt"], "--segment_frame_length": ["77"], "--solver": ["dpm++"]})

    def test_scripts_that_make_images_become_generate(self):
        command, flags = self.answer(
            "python src/musubi_tuner/qwen_image_generate_image.py --dit d --vae v --text_encoder t "
            "--model_version edit-2511 --control_image_path a.png b.png --prompt p --save_path o --mask_path m.png")
        self.assertEqual(flags, {
            "--plugin": ["qwen_image"], "--model_paths": ['["d","v","t"]'], "--edit_image": ["a.png", "b.png"],
            "--model_hints": ['{"*":{"variant":"qwen-image-edit-2511"}}'], "--prompt": ["p"],
            "--output": ["o/out.png"], "--inpaint_mask": ["m.png"], "--height": ["256"], "--width": ["256"],
            "--num_inference_steps": ["25"]})
        layered, flags = self.answer(
            "python src/musubi_tuner/qwen_image_generate_image.py --dit d --vae v --text_encoder t "
            "--model_version layered --control_image_path a.png --prompt p --save_path o")
        self.assertEqual((["a.png"], ['{"*":{"variant":"qwen-image-layered"}}']),
                         (flags["--layer_input_image"], flags["--model_hints"]))
        self.told("presets of qwen_image_generate_image.py that are others here")
        command, flags = self.answer(
            "python lumina_minimal_inference.py --pretrained_model_name_or_path l.st --gemma2_path g.st "
            "--ae_path a.st --output_dir o --offload --steps 20 --renorm_cfg 2 --prompt p --dtype bf16 "
            '--lora_weights "x.st;0.5"')
        self.assertEqual(flags, {
            "--plugin": ["lumina2"], "--model_paths": ['["l.st","g.st","a.st"]'], "--output": ["o/out.png"],
            "--num_inference_steps": ["20"], "--cfg_renorm": ["clamp"], "--cfg_renorm_ratio": ["2"],
            "--prompt": ["p"], "--dtype": ["bfloat16"], "--lora": ["x.st:0.5"], "--cfg_scale": ["3.5"],
            "--flow_shift": ["6"], "--system_prompt": [""]})

    def test_what_generate_does_not_have_is_refused_by_name(self):
        self.answer("python wan_generate_video.py --prompt p --save_path o.mp4 --from_file x.txt --slg_layers 9 "
                    "--frobnicate 3 --video_size 832 --control_image_path a.png", code=2)
        self.told("--from_file x.txt is left out", "--slg_layers 9 is left out",
                  "--frobnicate is not known to generate", "--video_size 832: two numbers are expected",
                  "the family has no input of pictures", "5 mistakes")
        self.answer("python qwen_image_generate_image.py --prompt p --save_path o --model_version layers "
                    "--end_image_path a.png --control_path c.mp4 --dit_high_noise h.st", code=2)
        self.told("--model_version layers is left out: the family has no such variant",
                  "the family has no input end_image", "the family has no input control_video", "the family has one denoiser")
        for script in ("examples/wanvideo/model_inference/Wan2.1-T2V-1.3B.py",
                       "examples/qwen_image/model_inference_low_vram/Qwen-Image.py",
                       "examples/qwen_image/model_training/validate_lora/Qwen-Image.py"):
            with self.subTest(script):
                self.assertEqual("generate", self.answer(f"python {script}", code=2)[0])
                self.told("takes no flags: its settings stand in the script", "atelier generate --help")

    def test_musubis_files_and_presets(self):
        (self.dir / "d.toml").write_text('[[datasets]]\nimage_directory = "im"\nresolution = [960, 544]\n')
        line = ("accelerate launch src/musubi_tuner/qwen_image_train_network.py --dit d.st --vae v.st "
                "--text_encoder t.st --model_version edit-2511 --dataset_config d.toml --sdpa --fp8_base --fp8_scaled "
                "--network_module networks.lora_qwen_image --network_dim 16 --max_train_epochs 16 ")
        shift = "--timestep_sampling shift --discrete_flow_shift 2.2"
        flags = self.paste(line + shift)
        self.assertEqual(flags, {
            "--plugin": "qwen_image", "--model_paths": '["d.st","v.st","t.st"]', "--dataset_base_path": "im",
            "--model_hints": '{"*":{"variant":"qwen-image-edit-2511"}}', "--extra_inputs": "edit_image",
            "--height": "544", "--width": "960", "--storage": "dit=fp8", "--lora_base_model": "dit",
            "--lora_rank": "16", "--num_epochs": "16", "--timestep_sampling": "shift",
            "--discrete_flow_shift": "2.2", "--lora_alpha": "1", "--lora_format": "kohya",
            "--learning_rate": "2e-6", "--dtype": "bfloat16", "--weighting_scheme": "none"})
        self.told("presets of musubi-tuner")
        self.assertEqual("1", self.paste(line + "--timestep_sampling shift")["--discrete_flow_shift"])
        self.assertEqual("sigmoid_dynamic_shift",
                         self.paste(line + "--timestep_sampling qwen_shift")["--timestep_sampling"])
        # Drawn evenly from all levels there, and from a shifted table here.
        self.paste(line, code=2)
        self.told("--timestep_sampling sigma of musubi-tuner")
        flags = self.paste(line.replace("--vae v.st", "").replace("--model_version", "--dit_high_noise h.st --task") +
                           shift, code=2)
        self.assertEqual('["d.st","t.st"]', flags["--model_paths"])
        self.told("--dit_high_noise h.st is left out", "add --vae and the text encoder's file")
        wan = line.replace("qwen_image", "wan").replace("--model_version edit-2511", "--task i2v-14B") + shift
        self.assertEqual("input_image", self.paste(wan)["--extra_inputs"])

    def test_musubis_control_images_are_a_folder_of_their_own(self):
        data = '[[datasets]]\nimage_directory = "im"\ncontrol_directory = "from here"\nresolution = [960, 544]\n'
        (self.dir / "d.toml").write_text(data + "control_resolution = [1024, 1024]\nno_resize_control = false\n")
        line = ("accelerate launch src/musubi_tuner/FAMILY_train_network.py --dit d.st --vae v.st --text_encoder t.st "
                "--dataset_config d.toml --network_module networks.lora --timestep_sampling shift ")
        edit = line.replace("FAMILY", "qwen_image") + "--model_version edit-2511"
        flags = self.paste(edit)
        self.assertEqual(("im", "from here", "edit_image"), tuple(
            flags[f"--{name}"] for name in ("dataset_base_path", "control_path", "extra_inputs")))
        self.told("images of --control_path come to the size that the family says")
        # The family has one such input, and is asked for none here.
        self.assertNotIn("--extra_inputs", self.paste(line.replace("FAMILY", "qwen_image")))
        (self.dir / "d.toml").write_text(data + "control_resolution = [512, 512]\nno_resize_control = true\n")
        self.paste(edit, code=2)
        self.told("control_resolution is left out", "no_resize_control is left out")
        (self.dir / "d.toml").write_text(data)
        # Which input a variant needs is known when the model is opened.
        self.paste(line.replace("FAMILY", "wan").replace("--text_encoder", "--t5") + "--task t2v-14B")
        self.paste(line.replace("FAMILY", "lumina"), code=2)
        self.told("--control_path: this model is trained with no images beside the ones to learn")

    def test_caching_scripts_become_cache(self):
        (self.dir / "d.toml").write_text('[[datasets]]\nimage_directory = "im"\nresolution = [960, 544]\n')
        command, flags = self.answer("python src/musubi_tuner/wan_cache_latents.py --dataset_config d.toml --vae v.st "
                                     "--vae_cache_cpu --skip_existing --batch_size 4", code=2)
        self.assertEqual("cache", command)
        self.assertEqual(flags, {"--plugin": ["wan"], "--model_paths": ['["v.st"]'], "--dataset_base_path": ["im"],
                                 "--height": ["544"], "--width": ["960"], "--dtype": ["bfloat16"]})
        self.told("encodes images and captions in one run; add the flags of the line that encodes the captions")
        command, flags = self.answer("python wan_cache_text_encoder_outputs.py --dataset_config d.toml --t5 t.pth "
                                     "--vae v.st --batch_size 16 --i2v")
        self.assertEqual(("cache", ['["t.pth","v.st"]'], ["input_image"]),
                         (command, flags["--model_paths"], flags["--extra_inputs"]))

    def test_files_of_other_programs_are_refused_by_name(self):
        (self.dir / "x.yaml").write_text("---\njob: extension\nconfig:\n  name: a\n  process:\n    - type: sd_trainer\n")
        (self.dir / "x.toml").write_text("output_dir = 'o'\n[model]\ntype = 'wan'\n[adapter]\nrank = 32\n")
        for line, program_name in (
                ("python run.py x.yaml", "ai-toolkit"), ("train --plugin wan --config x.yaml", "ai-toolkit"),
                ("generate --plugin wan --config x.yaml", "ai-toolkit"),
                ("deepspeed --num_gpus=1 train.py --deepspeed --config x.toml", "diffusion-pipe"),
                ("train --plugin wan --config x.toml", "diffusion-pipe")):
            with self.subTest(line):
                result = program.run(*line.split(), code=2, cwd=self.dir)
                self.assertIn(f"is a configuration of {program_name}, which is not read", result.stderr)
                self.assertIn("write flags of atelier train: --model_paths", result.stderr)

    def test_names_in_a_line_steer_no_terminal(self):
        folder = "a \033]0;owned\007\n'b\\"
        (self.dir / "d.toml").write_text(
            '"\\u001b[2J" = 1\n[[datasets]]\nvideo_directory = ' + json.dumps(folder) + "\ntarget_frames = [5]\n")
        result = program.run(*shlex.split(KOHYA.replace("DATASET", "d.toml").replace("\\\n", " ")), code=2,
                             cwd=self.dir)
        for text in (result.stdout, result.stderr):
            self.assertEqual([], [c for c in text if c < " " and c != "\n"], text)
        self.assertIn(r'd.toml: "\x1b[2J" is left out', result.stderr)
        shown = program.run_line(["bash", "-c", "atelier() { printf '%s|' \"$@\"; }; " + result.stdout]).stdout
        self.assertIn("|--dataset_base_path|" + folder + "|", shown)

    def test_what_kohyas_trainers_alone_do_is_refused(self):
        dataset = DATASET.replace("num_repeats = 10", "num_repeats = 10\n  flip_aug = true\n  keep_tokens = 0")
        (self.dir / "d.toml").write_text(dataset + "\n[[datasets.subsets]]\nimage_dir = 'more'\n")
        self.paste(KOHYA.replace("DATASET", "d.toml").strip() + " --noise_offset 0.1 --loss_type huber "
                   "--network_args attn_dim=4 mlp_dim=4 --shuffle_caption", code=2)
        self.told("2 [[subsets]]", "--noise_offset 0.1 is left out", "--loss_type huber", "--shuffle_caption",
                  "--network_args attn_dim=4 mlp_dim=4")
        (self.dir / "d.toml").write_text(dataset)
        self.paste(KOHYA.replace("DATASET", "d.toml"), code=2)
        self.told("d.toml: flip_aug is left out")
        self.assertNotIn("keep_tokens", self.result.stderr)
        self.paste(KOHYA.replace("DATASET", "absent.toml"), code=2)
        self.told("absent.toml", "add --dataset_base_path FOLDER")
        (self.dir / "d.toml").write_text("[general\n")
        self.paste(KOHYA.replace("DATASET", "d.toml"), code=2)
        self.told("d.toml:1:")

    def test_variables_in_front_are_kept_mapped_or_told(self):
        flags = self.paste("CUDA_VISIBLE_DEVICES=0 SDSCRIPTS_SELECTIVE_TORCH_COMPILE=1 DIFFSYNTH_SKIP_DOWNLOAD=True "
                           "SDSCRIPTS_TORCH_COMPILE_ACTIVATION_MEMORY_BUDGET=0.5 DIFFSYNTH_MODEL_BASE_PATH='/m n' " +
                           LORA.strip())
        self.assertEqual(["CUDA_VISIBLE_DEVICES=0", "DIFFSYNTH_MODEL_BASE_PATH=/m n"], self.variables)
        self.assertEqual("0.5", flags["--activation_memory_budget"])
        self.told("SDSCRIPTS_SELECTIVE_TORCH_COMPILE=1 is left out", "DIFFSYNTH_SKIP_DOWNLOAD=True is left out",
                  "SDSCRIPTS_TORCH_COMPILE_ACTIVATION_MEMORY_BUDGET=0.5 is --activation_memory_budget 0.5 here")

    def test_variables_of_the_environment_are_told_by_train(self):
        result = program.run("train", "--plugin", "qwen_image", "--lora_base_model", "dit", code=2,
                             SDSCRIPTS_TORCH_COMPILE_ACTIVATION_MEMORY_BUDGET="0.5",
                             DIFFSYNTH_MODEL_BASE_PATH=str(self.dir))
        self.assertIn("SDSCRIPTS_TORCH_COMPILE_ACTIVATION_MEMORY_BUDGET has no effect: use "
                      "--activation_memory_budget", result.stderr)
        self.assertNotIn("DIFFSYNTH_MODEL_BASE_PATH", result.stderr)

    def test_a_launcher_file_plans_for_its_processes(self):
        self.write("a.yaml", "distributed_type: MULTI_GPU\nnum_processes: 8\n")
        result = program.run("launch", "--config_file", "a.yaml", "--", "plan", "train", "--plugin", "qwen_image",
                             "--lora_base_model", "dit", code=2, cwd=self.dir)
        self.assertIn("a.yaml is --nproc_per_node 8 here", result.stderr)
        self.assertIn("--dataset_base_path is missing", result.stderr)
        self.assertEqual(1, result.stderr.count("error: "))
        result = program.run("launch", "--config_file", "a.yaml", "--", "generate", code=2, cwd=self.dir)
        self.assertIn("--config_file is about atelier train", result.stderr)

    def test_the_answer_runs(self):
        self.paste(LORA)
        answer = self.result.stdout
        script = f'atelier() {{ {shlex.quote(str(program.PROGRAM))} "$@"; }}; {answer.strip()} --dataset_base_path_x'
        result = program.run_line(["bash", "-c", script], code=2, cwd=self.dir)
        self.assertIn("model files are not there", result.stderr)
        self.assertIn("--dataset_base_path_x is not known", result.stderr)
        self.assertEqual(1, result.stderr.count("is not known"))


if __name__ == "__main__":
    unittest.main()
