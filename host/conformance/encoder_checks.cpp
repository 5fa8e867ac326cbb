// What encodes and decodes: images, clips and texts; and names that nobody has.
#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "host/conformance/checks.h"
#include "host/inputs/parse.h"
#include "host/model/components.h"
#include "host/model/stages.h"

namespace atelier::conformance {

namespace {

class EncoderChecks : Checks {
 public:
  explicit EncoderChecks(Subject& subject) : Checks(subject) {}

  void run() {
    if (subject_.target_stage) {
      check("media: encoding and decoding keep the size", [&] { return check_media(); });
    } else {
      check("media: latents decode to the size that they stand for",
            [&] { return check_decoding(); });
    }
    if (part_of_role(Role::kVae) != nullptr && subject_.target_stage) {
      check("blocks: every block of the VAE runs once and in order",
            [&] { return check_media_blocks(); });
      check("errors: an image that does not fit", [&] { return check_wrong_image(); });
    }
    check("stages: what does not see the target does not depend on it",
          [&] { return check_targets(); });
    check("stages: the denoiser takes what they give", [&] { return check_conditioning(); });
    check("texts: the tokens that are counted are those that are encoded",
          [&] { return check_text_length(); });
    check("errors: unknown components and tensors", [&] { return check_unknown_names(); });
  }

 private:
  // What the stage is given for pixels [channels, T, H, W].
  EncodeInputs target_inputs(const at::Tensor& pixels) const {
    return model::stages_of(family(), {}).target_inputs(pixels.to(device()));
  }

  Conditioning encode_target(Model& model, const at::Tensor& pixels, BlockRunner& runner) const {
    return model.encode(target_inputs(pixels), runner);
  }

  // All frames of finished latents, however many calls they come in.
  static at::Tensor decode(Model& model, const at::Tensor& latents, const Conditioning& cond,
                           BlockRunner& runner) {
    const int64_t channels = model.latent_spec().pixel_channels;
    const FinishedLatents finished = model.to_decode(latents, cond);
    std::vector<at::Tensor> frames;
    model.decode(finished.latents_BCTHW, runner, [&](const at::Tensor& pixels) {
      expect(pixels.dim() == 5 && pixels.size(0) == latents.size(0) && pixels.size(1) == channels &&
                 pixels.size(2) > 0,
             "the sink is given ", pixels.sizes());
      frames.push_back(pixels);
    });
    expect(!frames.empty(), "the sink is given nothing");
    return at::cat(frames, 2).slice(2, finished.skipped_frames);
  }

  // What a stage gives for the same inputs beside another target.
  Detail check_targets() const {
    const at::NoGradGuard no_grad;
    const std::unique_ptr<Model> model = make_random();
    const int64_t side = 2 * model->latent_spec().pixel_multiple;
    DirectRunner runner;
    int64_t compared = 0;
    const auto compare = [&](const EncodeStage& stage, const Inputs& values) {
      if (stage.sees_target) return;
      EncodeInputs in = {.stage = stage.name, .values = values, .target = {1, side, side}};
      const Conditioning one = model->encode(in, runner);
      in.target = {1, 2 * side, side};
      const Conditioning other = model->encode(in, runner);
      for (const auto& [name, value] : one)
        expect(other.contains(name) && at::equal(value, other.at(name)), "stage '", stage.name,
               "': '", name, "' depends on the size of what is made, and sees_target is not set");
      ++compared;
    };
    for (const EncodeStage& stage : model::encode_stages(family())) {
      const bool is_target = subject_.target_stage && stage.name == subject_.target_stage->name;
      if (is_target && part_of_role(Role::kVae) != nullptr) {
        const int64_t channels = model->latent_spec().pixel_channels;
        compare(stage, target_inputs(at::rand({channels, 1, side, side}) * 2 - 1).values);
      }
      if (model::is_prompted(stage) && !has_tokenizer() && stage.inputs.size() == 1)
        compare(stage, {{"prompt", std::string("a")}});
    }
    return std::to_string(compared) + " stages";
  }

  // What else than a prompt a model of this variant cannot be asked without; null: nothing.
  const InputSpec* other_required_input(std::string_view variant) const {
    const auto found = std::ranges::find_if(family().inputs(), [&](const InputSpec& input) {
      return inputs::is_required(input, variant) && input.use != InputUse::kTrain &&
             input.role != InputRole::kTarget && input.name != "prompt";
    });
    return found == family().inputs().end() ? nullptr : &*found;
  }

  // A prompt through its stages, and what they give to the denoiser. Without a tokenizer there is
  // no prompt, and what stages make of pictures is not tried.
  Detail check_conditioning() const {
    const at::NoGradGuard no_grad;
    if (has_tokenizer()) return "not tried: the stages need a tokenizer";
    int64_t tried = 0;
    for (const Detection& part : parts()) {
      if (!model::has_role(family(), part.component, Role::kDenoiser)) continue;
      if (const InputSpec* other = other_required_input(part.variant))
        return "not tried: input '" + std::string(other->name) + "' is required";
      const std::unique_ptr<Model> model = make_random();
      const LatentSpec spec = model->latent_spec();
      const int64_t side = 2 * spec.pixel_multiple;
      const MediaTarget target = {spec.takes_clips ? 1 + spec.temporal_stride : 1, side, side};
      const Conditioning cond = encode_prompt(*model, part, target);
      if (cond.empty()) return "not tried: no stage makes anything of a prompt alone";
      denoise_with(*model, part, target, cond);
      ++tried;
    }
    return std::to_string(tried) + " denoisers";
  }

  Conditioning encode_prompt(Model& model, const Detection& denoiser,
                             const MediaTarget& target) const {
    DirectRunner runner;
    Conditioning cond;
    for (const EncodeStage& stage : model::encode_stages(family(), denoiser.variant)) {
      if (stage.per_piece) return {};  // the denoiser may need what only a piece has
      if (!model::is_prompted(stage)) continue;
      if (stage.inputs.size() > 1) return {};  // it may need another one, too
      Conditioning made = model::encode(
          model, {.stage = stage.name, .values = {{"prompt", std::string("a")}}, .target = target},
          runner, device());
      expect(!made.empty(), "stage '", stage.name, "' gives nothing");
      cond.merge(made);
    }
    return cond;
  }

  void denoise_with(Model& model, const Detection& denoiser, const MediaTarget& target,
                    const Conditioning& cond) const {
    std::vector<int64_t> shape = model.latent_shape(target, cond);
    shape.insert(shape.begin(), 1);
    const SigmaRange range = family().sigma_range(denoiser);
    const Conditioning* one = &cond;
    const at::Tensor x = at::randn(shape).to(device());
    const at::Tensor sigma = at::full({1}, (range.low + range.high) / 2, at::kFloat).to(device());
    std::string entries;
    for (const auto& [name, value] : cond)
      entries += c10::str(entries.empty() ? "" : ", ", name, " ", value.sizes());
    DirectRunner runner;
    std::string failure;
    try {
      const at::Tensor out = model.denoise({.x_BCTHW = x,
                                            .sigma_B = sigma,
                                            .cond = std::span(&one, 1),
                                            .denoiser = denoiser.component},
                                           runner);
      expect(out.sizes() == x.sizes(), "gives ", out.sizes(), " for ", x.sizes());
    } catch (const Error& error) {
      failure = error.message();
    }
    expect(failure.empty(), "they give ", entries, "; ", failure);
  }

  Detail check_media() const {
    const at::NoGradGuard no_grad;
    const std::unique_ptr<Model> model = make_random();
    const LatentSpec spec = model->latent_spec();
    DirectRunner runner;
    for (const auto& [rows, columns] :
         {std::pair<int64_t, int64_t>(2, 3), std::pair<int64_t, int64_t>(3, 1)}) {
      const int64_t height = rows * spec.pixel_multiple, width = columns * spec.pixel_multiple;
      const InputSpec& target = *model::target_input(family().inputs());
      int64_t frames = target.min_count;
      if (inputs::is_list(target) && spec.takes_clips)
        frames = std::min<int64_t>(target.max_count, frames + 1);
      if (target.kind == InputKind::kVideo) frames = 1 + rows * spec.temporal_stride;
      const at::Tensor image = at::rand({spec.pixel_channels, frames, height, width}) * 2 - 1;
      const Conditioning made = encode_target(*model, image, runner);
      const at::Tensor latents = made.at("latents");
      const std::vector<int64_t> size = model->latent_shape({frames, height, width}, made);
      expect(latents.sizes() == at::IntArrayRef(size), "an image of ", image.sizes(),
             " gives latents ", latents.sizes());
      const at::Tensor pixels = decode(*model, latents.unsqueeze(0), made, runner);
      expect(pixels.dim() == 5 && pixels.size(0) == 1 && pixels[0].sizes() == image.sizes(),
             "latents ", latents.sizes(), " give pixels ", pixels.sizes());
      expect(pixels.scalar_type() == at::kFloat, "pixels are not float32");
      expect(at::isfinite(pixels).all().item<bool>() && at::isfinite(latents).all().item<bool>(),
             "gives values that are not finite");
      const at::Tensor two = decode(*model, at::stack({latents, latents * 0.5}), made, runner);
      expect(two.size(0) == 2 && difference(two.narrow(0, 0, 1), pixels) <= kTolerance,
             "a batch of two decodes to something else");
      const bool is_plain = size[1] == (frames - 1) / spec.temporal_stride + 1;
      if (target.kind != InputKind::kVideo || !is_plain) continue;
      const at::Tensor first = latents.narrow(1, 0, 1);
      const at::Tensor clip = decode(*model, at::cat({first, first}, 1).unsqueeze(0), {}, runner);
      expect(clip.size(2) == 1 + spec.temporal_stride, "two latent frames decode to ",
             clip.size(2));
    }
    return {};
  }

  // Where nothing encodes what is made.
  Detail check_decoding() const {
    const at::NoGradGuard no_grad;
    const std::unique_ptr<Model> model = make_random();
    const int64_t side = 2 * model->latent_spec().pixel_multiple;
    DirectRunner runner;
    const at::Tensor latents = at::randn(model->latent_shape({1, side, side}, {})).to(device());
    const at::Tensor pixels = decode(*model, latents.unsqueeze(0), {}, runner);
    const int64_t channels = model->latent_spec().pixel_channels;
    expect(pixels.sizes() == at::IntArrayRef({1, channels, 1, side, side}), "latents ",
           latents.sizes(), " give pixels ", pixels.sizes());
    return {};
  }

  Detail check_media_blocks() const {
    const at::NoGradGuard no_grad;
    const std::unique_ptr<Model> model = make_random();
    const LatentSpec spec = model->latent_spec();
    const std::vector<Block*> blocks = model->blocks(part_of_role(Role::kVae)->component);
    CountingRunner encoding, decoding;
    const Conditioning made = encode_target(
        *model,
        at::rand({spec.pixel_channels, 1, 2 * spec.pixel_multiple, 2 * spec.pixel_multiple}) * 2 -
            1,
        encoding);
    decode(*model, made.at("latents").unsqueeze(0), made, decoding);
    std::vector<Block*> both = encoding.order;
    both.insert(both.end(), decoding.order.begin(), decoding.order.end());
    expect(both == blocks, "encoding and decoding ran ", paths(both), "; declared are ",
           paths(blocks));
    return std::to_string(blocks.size()) + " blocks";
  }

  Detail check_wrong_image() const {
    const at::NoGradGuard no_grad;
    const std::unique_ptr<Model> model = make_random();
    const LatentSpec spec = model->latent_spec();
    if (spec.spatial_stride == 1) return "every size fits";
    DirectRunner runner;
    expect_error(ErrorCode::kInvalidArgument, "an image whose width does not fit", [&] {
      encode_target(
          *model,
          at::rand({spec.pixel_channels, 1, 2 * spec.pixel_multiple, spec.pixel_multiple + 1}),
          runner);
    });
    return {};
  }

  // A text as long as is allowed is encoded; one token more is refused, or cut when that is asked.
  Detail check_text_length() const {
    const at::NoGradGuard no_grad;
    const std::unique_ptr<Model> model = make_random();
    const std::vector<EncodeStage> stages = model::encode_stages(family());
    const auto stage = std::ranges::find_if(stages, model::is_prompted);
    if (stage == stages.end()) return "no stage reads a prompt";
    const auto text_of = [&](size_t letters) {
      return EncodeInputs{.stage = stage->name, .values = {{"prompt", std::string(letters, 'a')}}};
    };
    if (has_tokenizer()) {
      expect_error(ErrorCode::kUnsupported, "counting tokens without a tokenizer",
                   [&] { model->text_length(text_of(4)); });
      return "without its tokenizer there is nothing to count";
    }
    constexpr size_t kMostLetters = size_t{1} << 20;
    const auto fits = [&](size_t letters) {
      const TextLength length = model->text_length(text_of(letters));
      return length.tokens <= length.limit;
    };
    expect(fits(1), "a text of one letter is said to be too long");
    if (fits(kMostLetters)) return "no text is too long";
    size_t longest = 1, too_long = kMostLetters;
    while (too_long - longest > 1) {
      const size_t middle = (longest + too_long) / 2;
      (fits(middle) ? longest : too_long) = middle;
    }
    DirectRunner runner;
    model->encode(text_of(longest), runner);
    expect_error(ErrorCode::kInvalidArgument, "a text that is too long",
                 [&] { model->encode(text_of(too_long), runner); });
    expect(
        !make_random(at::kFloat, {.cuts_texts = true})->encode(text_of(too_long), runner).empty(),
        "a text that is cut gives nothing");
    return std::to_string(longest) + " letters are encoded";
  }

  Detail check_unknown_names() const {
    const std::unique_ptr<Model> model = make_random();
    DirectRunner runner;
    expect_error(ErrorCode::kNotFound, "an unknown component",
                 [&] { model->component("no_such_component"); });
    for (const Detection& part : parts()) {
      expect_error(ErrorCode::kInvalidArgument,
                   "probing " + part.component + " with an unknown tensor", [&] {
                     model->probe(part.component, {{"no_such_tensor", at::zeros({1})}}, runner);
                   });
    }
    if (has_tokenizer())
      expect_error(ErrorCode::kUnsupported, "tokenizing without a tokenizer",
                   [&] { model->tokenize("text"); });
    return {};
  }
};

}  // namespace

void check_encoders(Subject& subject) {
  EncoderChecks(subject).run();
}

}  // namespace atelier::conformance
