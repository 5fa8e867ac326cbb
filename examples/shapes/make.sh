#!/usr/bin/env bash
# Makes model/, hatched/, edit/ and recolor.safetensors anew, from nothing but seeds.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

usage() {
  cat <<'TEXT_END'
usage: make.sh FOLDER

  FOLDER  where everything goes: FOLDER/model, FOLDER/hatched, FOLDER/edit, FOLDER/recolor, and what they are made from

PYTHON (default: python3) needs numpy, Pillow, torch, diffusers and safetensors; ATELIER is the program
(default: build/release/bin/atelier). It can be interrupted and run again: what is done is not done twice.
TEXT_END
}

source "$here/../make_steps.sh"

once wide "$python" "$here/pictures.py" "$folder/wide" --count 8000 --seed 1 --wide
once near "$python" "$here/pictures.py" "$folder/near" --count 6000 --seed 1
once hatched "$python" "$here/pictures.py" "$folder/hatched" --count 24 --seed 3 --style hatched
once edit "$python" "$here/pictures.py" "$folder/edit" --count 12 --seed 5 --edit
once vae "$python" "$here/train_vae.py" "$folder/vae" --steps 900 --seed 7
once untrained "$python" "$here/make_model.py" "$folder/untrained" --vae "$folder/vae" --seed 11
# Colours, grounds and places are learnt first, where things may be anywhere; then shapes, near the middle.
train() {  # train PICTURES RUN FLAG...
  local pictures=$folder/$1 run=$folder/$2
  shift 2
  env -u OMP_NUM_THREADS "$atelier" train --plugin qwen_image --trainable_models dit \
    --model_paths "[\"$folder/untrained\"]" --dataset_base_path "$pictures" \
    --dataset_metadata_path "$pictures/metadata.csv" --dtype float32 --adam_beta2 0.99 \
    --lr_scheduler cosine --batch_size 16 --num_epochs 1000 --ema_decay 0.998 --weighting_scheme none \
    --caption_dropout_rate 0.1 --save_dtype bfloat16 --enable_csv_log --logging_steps 20 --threads 2 \
    --save_steps 500 --output_path "$run" --resume latest "$@"
}
once wide_run train wide wide_run --learning_rate 1.5e-3 --lr_warmup_steps 300 --max_train_steps 9000
once near_run train near near_run --learning_rate 1.2e-3 --lr_warmup_steps 100 --max_train_steps 5000 \
  --resume_from_checkpoint "$folder/wide_run/step-9000.safetensors"
once refine "$python" "$here/train_vae.py" "$folder/vae" --refine --steps 1000 --seed 8
once model "$python" "$here/make_model.py" "$folder/model" --vae "$folder/vae" \
  --denoiser "$folder/near_run/step-5000.safetensors" --seed 11
once pairs "$python" "$here/pictures.py" "$folder/pairs" --count 4000 --seed 21 --edit
once pairs2 "$python" "$here/pictures.py" "$folder/pairs2" --count 4000 --seed 22 --edit
once pairs3 "$python" "$here/pictures.py" "$folder/pairs3" --count 6000 --seed 23 --edit
once recolor "$python" "$here/recolor.py" train "$folder" "$folder/recolor" \
  --program "$atelier" --model "$folder/model"
