#!/usr/bin/env bash
# Makes model/ anew, from nothing but seeds.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

usage() {
  cat <<'TEXT_END'
usage: make.sh FOLDER

  FOLDER  where everything goes: FOLDER/model, and what it is made from

PYTHON (default: python3) needs numpy, Pillow, torch, diffusers, transformers and sentencepiece; ATELIER is
the program (default: build/release/bin/atelier). It can be interrupted and run again: what is done is not done
twice.
TEXT_END
}

source "$here/../make_steps.sh"

once clips "$python" "$here/clips.py" "$folder/clips" --count 1000 --seed 1
once vae "$python" "$here/train_clip_vae.py" "$folder/vae" --steps 1200 --seed 7
once untrained "$python" "$here/make_model.py" "$folder/untrained" --vae "$folder/vae" --seed 11
# train STEPS RATE SCHEDULE: one run for both experts, as far as STEPS. The GIFs are played as they are: their rate is not
# the model's.
train() {
  env -u OMP_NUM_THREADS "$atelier" train --plugin wan --trainable_models dit,dit2 \
    --model_paths "[\"$folder/untrained\"]" --dataset_base_path "$folder/clips" \
    --dataset_metadata_path "$folder/clips/metadata.csv" --num_frames 17 --height 64 --width 64 --keep_frame_rate \
    --dtype float32 --adam_beta2 0.99 --learning_rate "$2" --lr_scheduler "$3" --lr_warmup_steps 100 \
    --batch_size 8 --num_epochs 1000 --max_train_steps "$1" --ema_decay 0.995 --weighting_scheme none \
    --caption_dropout_rate 0.1 --save_dtype bfloat16 --enable_csv_log --logging_steps 20 --threads 2 \
    --save_steps 250 --output_path "$folder/run" --resume latest
}
once run train 6500 2e-3 constant_with_warmup
once run_slower train 7500 4e-4 constant_with_warmup
once run_end train 10500 4e-3 cosine
# decoder STEPS SEED: latents stay as they are, so that this may also run beside the training, on a copy.
decoder() { "$python" "$here/train_clip_vae.py" "$folder/vae" --clips --steps "$1" --seed "$2"; }
once decoder_1 decoder 200 8
once decoder_2 decoder 400 9
once decoder_3 decoder 1000 10
once decoder_4 decoder 800 11
once model "$python" "$here/make_model.py" "$folder/model" --vae "$folder/vae" --seed 11 \
  --denoisers "$folder/run/step-10500.dit.safetensors" "$folder/run/step-10500.dit2.safetensors"
