// Shape letters: B samples, C latent channels, T frames, H and W height and width, L tokens, N rows
// of all samples, D width.
#include "atelier/component_model.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/named_inputs.h"

namespace atelier {
namespace {

[[noreturn]] void invalid(const std::string& message, const std::string& hint = {}) {
  throw Error(ErrorCode::kInvalidArgument, message, hint);
}

std::string number(int64_t value) {
  return std::to_string(value);
}

[[noreturn]] void throw_not_loaded(std::string_view what) {
  throw Error(ErrorCode::kNotFound, "the " + std::string(what) + " is not loaded",
              "add its files to --model_paths");
}

// Throws where sizes in pixels are no whole numbers of latent cells.
void check_strides(const LatentSpec& latents) {
  const int64_t multiple = latents.pixel_multiple, stride = latents.spatial_stride;
  if (multiple >= 1 && stride >= 1 && multiple % stride == 0) return;
  throw Error(ErrorCode::kEnvironment,
              "latents of pixel_multiple " + number(multiple) + ", which is no multiple of " +
                  "spatial_stride " + number(stride),
              "ask the plugin's author", "PLUGIN_WRONG");
}

// The blocks below a module, in order of declaration. A block is not looked into.
void collect_blocks(nn::Module& module, std::vector<Block*>& blocks) {
  for (nn::Module* child : module.children()) {
    if (auto* block = dynamic_cast<Block*>(child)) {
      blocks.push_back(block);
    } else {
      collect_blocks(*child, blocks);
    }
  }
}

void check_rows(const Conditioning& cond, const ConditioningEntry& entry) {
  const at::Tensor& rows = named_tensor(cond, entry.name, 2);
  if (rows.size(0) < 1 || rows.size(1) != entry.width) {
    invalid(std::string(entry.name) + " of shape " + shape_text(rows) + ", [L, " +
            number(entry.width) + "] expected");
  }
}

// What the samples of a padded batch give for one entry.
void add_entry(std::vector<Conditioning>& cond, const NamedTensors& inputs,
               const ConditioningEntry& entry) {
  if (entry.width == 0 && !inputs.contains(entry.name)) return;
  const at::Tensor& batch =
      entry.width ? named_tensor(inputs, entry.name, 3) : inputs.find(entry.name)->second;
  const auto B = std::ssize(cond);
  if (batch.dim() < 1 || batch.size(0) != B)
    invalid("tensor '" + std::string(entry.name) + "': shape " + shape_text(batch) + ", " +
            number(B) + " samples expected");
  std::vector<int64_t> lengths;
  if (entry.width) lengths = lengths_of(inputs, entry.lengths, B, batch.size(1));
  for (int64_t b = 0; b < B; ++b) {
    const auto at = static_cast<size_t>(b);
    const at::Tensor sample = batch.select(0, b);
    cond[at].emplace(entry.name, entry.width ? sample.narrow(0, 0, lengths[at]) : sample);
  }
}

void check_frames(int64_t frames, bool takes_clips) {
  if (frames == 1 || (frames > 1 && takes_clips)) return;
  throw Error(ErrorCode::kUnsupported, number(frames) + " frames: this family makes still images",
              "give one frame");
}

NamedTensors probe_text(TextEncoder& encoder, const NamedTensors& inputs, BlockRunner& runner) {
  allow_only(inputs, {"input_ids", "lengths"});
  const at::Tensor& ids = named_tensor(inputs, "input_ids", 2);
  if (ids.scalar_type() != at::kLong || ids.numel() == 0)
    invalid("tensor 'input_ids': int64 [B, L] expected");
  if (ids.min().item<int64_t>() < 0 || ids.max().item<int64_t>() >= encoder.vocabulary()) {
    invalid("tensor 'input_ids': ids from 0 to " + number(encoder.vocabulary() - 1) + " expected");
  }
  const int64_t L = ids.size(1);
  const std::vector<int64_t> lengths = lengths_of(inputs, "lengths", ids.size(0), L);
  const Segments rows(lengths);
  return {{"hidden", pad_rows(encoder.forward(pack_rows(ids, lengths), rows, runner), rows, L)}};
}

}  // namespace

TextEncoder::~TextEncoder() = default;
Autoencoder::~Autoencoder() = default;

int64_t Autoencoder::pixel_channels() const {
  return 3;
}

Denoiser::~Denoiser() = default;

PacksCalls::~PacksCalls() = default;

CallSamples samples_of(std::span<const DenoiseInputs> calls) {
  CallSamples all;
  Tensors sigmas;
  for (const DenoiseInputs& in : calls) {
    sigmas.push_back(in.sigma_B);
    all.cond.insert(all.cond.end(), in.cond.begin(), in.cond.end());
    all.levels.insert(all.levels.end(), in.cond.size(), in.level);
  }
  all.sigma_B = sigmas.size() == 1 ? sigmas.front() : at::cat(sigmas);
  return all;
}

nn::NoiseLevels* Denoiser::levels() {
  return nullptr;
}

ComponentModel::ComponentModel(std::span<const ComponentRow> rows, std::span<const Detection> parts,
                               const ModelOptions& options, const LatentSpec& latents)
    : latents_(latents), cuts_texts_(options.cuts_texts) {
  check_strides(latents);
  for (const ComponentRow& row : rows) {
    if (!row.make) continue;
    components_.push_back({std::string(row.spec.name), nullptr, {}});
    for (const Detection& part : parts) {
      if (spec_name(part.component) != row.spec.name) continue;
      Component* component = find(part.component);
      if (!component) component = &components_.emplace_back(Component{part.component, nullptr, {}});
      if (component->module) invalid("two checkpoints hold the " + part.component, "give one");
      component->module = row.make(part);
      collect_blocks(*component->module, component->blocks);
    }
  }
  for (const Detection& part : parts) {
    if (!find(part.component)) invalid("this family has no component '" + part.component + "'");
  }
  check_parts();
  for (const ComponentRow& row : rows) load_tokenizer(row, options);
}

ComponentModel::~ComponentModel() = default;

void ComponentModel::check_parts() {
  const std::vector<Autoencoder*> autoencoders = all<Autoencoder>();
  for (const Denoiser* denoiser : all<Denoiser>()) {
    for (const ConditioningEntry& entry : denoiser->entries()) {
      const Component* found = entry.width ? find(entry.encoder) : nullptr;
      if (!found || !found->module) continue;
      const auto& encoder = dynamic_cast<const TextEncoder&>(*found->module);
      if (encoder.width() == entry.width) continue;
      invalid("the text encoder gives " + number(encoder.width()) +
                  " values a token, the DiT takes " + number(entry.width),
              "pass the text encoder that is published with the DiT");
    }
    if (!autoencoders.empty() && autoencoders.front()->channels() != denoiser->channels()) {
      invalid("the VAE has " + number(autoencoders.front()->channels()) +
                  " latent channels, the DiT " + number(denoiser->channels()),
              "pass the VAE that is published with the DiT");
    }
  }
}

void ComponentModel::load_tokenizer(const ComponentRow& row, const ModelOptions& options) {
  const auto file = options.files.find(row.tokenizer);
  if (file == options.files.end()) return;
  const auto tokenizer = text::Tokenizer::load(file->second, row.tokenizer_rules);
  const nn::Module* module = find(row.spec.name)->module.get();
  const auto* encoder = dynamic_cast<const TextEncoder*>(module);
  if (encoder && tokenizer->size() > encoder->vocabulary()) {
    invalid("the tokenizer has " + number(tokenizer->size()) + " tokens, the text encoder " +
                number(encoder->vocabulary()),
            "pass the tokenizer that is published with the text encoder");
  }
  tokenizers_[row.tokenizer] = tokenizer;
}

ComponentModel::Component* ComponentModel::find(std::string_view name) {
  const auto found = std::find_if(components_.begin(), components_.end(),
                                  [&](const Component& c) { return c.name == name; });
  return found == components_.end() ? nullptr : &*found;
}

template <class Part>
std::vector<Part*> ComponentModel::all() const {
  std::vector<Part*> result;
  for (const Component& component : components_) {
    if (auto* part = dynamic_cast<Part*>(component.module.get())) result.push_back(part);
  }
  return result;
}

template <class Part>
Part& ComponentModel::first(const char* what) const {
  const std::vector<Part*> parts = all<Part>();
  if (parts.empty()) throw_not_loaded(what);
  return *parts.front();
}

nn::Module& ComponentModel::component(std::string_view name) {
  if (const Component* found = find(name)) {
    if (!found->module) throw_not_loaded(name);
    return *found->module;
  }
  std::string names;
  for (const Component& c : components_) names.append(names.empty() ? "" : ", ").append(c.name);
  throw Error(ErrorCode::kNotFound, "no component '" + std::string(name) + "' has tensors",
              "components with tensors are " + names);
}

std::vector<Block*> ComponentModel::blocks(std::string_view component) {
  const Component* found = find(component);
  return found ? found->blocks : std::vector<Block*>();
}

LatentSpec ComponentModel::latent_spec() const {
  LatentSpec spec = latents_;
  int64_t patch = spec.pixel_multiple / spec.spatial_stride;
  if (const auto denoisers = all<Denoiser>(); !denoisers.empty()) {
    spec.channels = denoisers.front()->channels();
    patch = denoisers.front()->patch();
  }
  if (const auto autoencoders = all<Autoencoder>(); !autoencoders.empty()) {
    spec.channels = autoencoders.front()->channels();
    spec.spatial_stride = autoencoders.front()->spatial_stride();
    spec.pixel_channels = autoencoders.front()->pixel_channels();
  }
  spec.pixel_multiple = spec.token_stride = patch * spec.spatial_stride;
  return spec;
}

void ComponentModel::check_latents(const at::Tensor& latents_BCTHW, int64_t channels,
                                   int64_t patch) const {
  if (latents_BCTHW.dim() != 5 || latents_BCTHW.size(0) < 1 || latents_BCTHW.size(1) != channels) {
    invalid("latents of shape " + shape_text(latents_BCTHW) + ", [B, " + number(channels) +
            (latents_.takes_clips ? ", T, H, W] expected" : ", 1, H, W] expected"));
  }
  check_frames(latents_BCTHW.size(2), latents_.takes_clips);
  for (const int64_t side : {latents_BCTHW.size(3), latents_BCTHW.size(4)}) {
    if (side >= patch && side % patch == 0) continue;
    invalid("latents of shape " + shape_text(latents_BCTHW) +
                ": height and width are multiples of " + number(patch),
            "height and width in pixels are multiples of " + number(latent_spec().pixel_multiple));
  }
}

Conditioning ComponentModel::encode_latents(const Inputs& inputs, std::string_view name,
                                            BlockRunner& runner) {
  const auto& autoencoder = first<Autoencoder>("vae");
  const at::Tensor pixels = clip_input(inputs, name, autoencoder.pixel_channels());
  const int64_t frames = pixels.size(1), H = pixels.size(2), W = pixels.size(3);
  const bool are_pictures = find_input<std::vector<at::Tensor>>(inputs, name) != nullptr;
  if (!are_pictures) check_frames(frames, latents_.takes_clips);
  const int64_t step = are_pictures ? 1 : latents_.temporal_stride;
  if ((frames - 1) % step != 0)
    invalid("clip of " + number(frames) + " frames: one more than a multiple of " + number(step));
  const int64_t stride = autoencoder.spatial_stride();
  if (H < 1 || W < 1 || H % stride != 0 || W % stride != 0) {
    invalid("image of " + number(W) + " x " + number(H) + " pixels: both sides are multiples of " +
            number(stride));
  }
  if (are_pictures) {  // [N, channels, 1, H, W] to [C, N, h, w]
    const at::Tensor pictures = pixels.transpose(0, 1).unsqueeze(2);
    return {{"latents", autoencoder.encode(pictures, runner).squeeze(2).transpose(0, 1)}};
  }
  return {{"latents", autoencoder.encode(pixels.unsqueeze(0), runner).squeeze(0)}};
}

void ComponentModel::decode(const at::Tensor& latents_BCTHW, BlockRunner& runner,
                            const FrameSink& sink) {
  const auto& autoencoder = first<Autoencoder>("vae");
  check_latents(latents_BCTHW, autoencoder.channels(), /*patch=*/1);
  autoencoder.decode(latents_BCTHW, runner, sink);
}

at::Tensor ComponentModel::denoise(const DenoiseInputs& in, BlockRunner& runner) {
  return run(loaded<Denoiser>(in.denoiser), in, runner);
}

std::vector<at::Tensor> ComponentModel::denoise_all(std::span<const DenoiseInputs> calls,
                                                    BlockRunner& runner) {
  if (calls.empty()) return {};
  auto& denoiser = loaded<Denoiser>(calls.front().denoiser);
  auto* const packs = dynamic_cast<PacksCalls*>(&denoiser);
  if (packs == nullptr) return Model::denoise_all(calls, runner);
  std::vector<DenoiseInputs> all;
  for (const DenoiseInputs& in : calls) {
    if (in.denoiser != calls.front().denoiser)
      invalid("calls of several denoisers", "make those of each at once");
    all.push_back(checked(denoiser, in));
  }
  return packs->denoise_all(all, runner);
}

DenoiseInputs ComponentModel::checked(const Denoiser& denoiser, const DenoiseInputs& in) const {
  check_latents(in.x_BCTHW, denoiser.channels(), denoiser.patch());
  const int64_t B = in.x_BCTHW.size(0);
  if (in.sigma_B.dim() != 1 || in.sigma_B.size(0) != B || std::ssize(in.cond) != B) {
    invalid(number(B) + " samples with sigmas of shape " + shape_text(in.sigma_B) + " and " +
            std::to_string(in.cond.size()) + " conditionings");
  }
  for (const ConditioningEntry& entry : denoiser.entries()) {
    if (entry.width == 0) continue;
    for (const Conditioning* cond : in.cond) check_rows(*cond, entry);
  }
  DenoiseInputs checked = in;
  checked.sigma_B = in.sigma_B.to(at::kFloat);
  return checked;
}

at::Tensor ComponentModel::run(Denoiser& denoiser, const DenoiseInputs& in,
                               BlockRunner& runner) const {
  return denoiser.denoise(checked(denoiser, in), runner);
}

std::vector<WeightPtr> ComponentModel::level_weights(std::string_view denoiser) {
  const Component* found = find(denoiser);
  auto* module = found ? dynamic_cast<Denoiser*>(found->module.get()) : nullptr;
  if (!module || !module->levels()) return {};
  return module->levels()->weights();
}

void ComponentModel::prepare_levels(std::string_view denoiser, std::span<const float> sigmas,
                                    BlockRunner& runner) {
  if (auto* levels = loaded<Denoiser>(denoiser).levels()) levels->prepare(sigmas, runner);
}

void ComponentModel::forget_levels() {
  for (Denoiser* denoiser : all<Denoiser>()) {
    if (denoiser->levels()) denoiser->levels()->forget();
  }
}

bool ComponentModel::has_tokenizer(std::string_view name) const {
  return tokenizers_.contains(name);
}

const text::Tokenizer& ComponentModel::tokenizer(std::string_view name) const {
  const auto found = tokenizers_.find(name);
  if (found != tokenizers_.end()) return *found->second;
  throw Error(ErrorCode::kUnsupported, "the " + std::string(name) + " is not loaded",
              "add the published tokenizer folder to --model_paths");
}

std::vector<int64_t> ComponentModel::tokenize(std::string_view text) const {
  return tokenizer().encode(text);
}

void ComponentModel::cut_to_limit(std::vector<int64_t>& ids, const TextLength& length,
                                  std::string_view note) const {
  if (length.tokens <= length.limit) return;
  if (!cuts_texts_) {
    invalid("prompt: " + number(length.tokens) + " tokens" + std::string(note) + ", at most " +
                number(length.limit) + " are encoded",
            "shorten the prompt");
  }
  ids.resize(ids.size() - static_cast<size_t>(length.tokens - length.limit));
}

at::Tensor ComponentModel::encode_ids(std::string_view encoder, const std::vector<int64_t>& ids,
                                      BlockRunner& runner) {
  auto& module = loaded<TextEncoder>(encoder);
  for (const int64_t id : ids) {
    if (id >= 0 && id < module.vocabulary()) continue;
    throw Error(ErrorCode::kEnvironment,
                "token id " + number(id) + " of a vocabulary of " + number(module.vocabulary()),
                "ask the plugin's author", "PLUGIN_WRONG");
  }
  return module.forward(at::tensor(ids, at::kLong), Segments({std::ssize(ids)}), runner);
}

NamedTensors ComponentModel::probe(std::string_view name, const NamedTensors& inputs,
                                   BlockRunner& runner) {
  nn::Module& module = component(name);
  if (auto* encoder = dynamic_cast<TextEncoder*>(&module))
    return probe_text(*encoder, inputs, runner);
  if (auto* autoencoder = dynamic_cast<Autoencoder*>(&module))
    return probe_media(*autoencoder, inputs, runner);
  if (auto* denoiser = dynamic_cast<Denoiser*>(&module))
    return probe_denoiser(*denoiser, inputs, runner);
  throw Error(ErrorCode::kUnsupported, "component '" + std::string(name) + "' cannot be probed");
}

NamedTensors ComponentModel::probe_media(Autoencoder& autoencoder, const NamedTensors& inputs,
                                         BlockRunner& runner) const {
  allow_only(inputs, {"image", "clip", "latents"});
  if (inputs.size() != 1)
    invalid("tensors 'image' or 'clip' (to encode) and 'latents' (to decode): one is expected");
  if (inputs.contains("latents")) {
    const at::Tensor& latents = named_tensor(inputs, "latents", 5);
    check_latents(latents, autoencoder.channels(), /*patch=*/1);
    Tensors frames;
    autoencoder.decode(latents, runner,
                       [&](const at::Tensor& pixels) { frames.push_back(pixels); });
    if (latents.size(2) == 1) return {{"image", frames.front().select(2, 0)}};
    return {{"clip", at::cat(frames, 2)}};
  }
  const bool is_clip = inputs.contains("clip");
  const std::string name = is_clip ? "clip" : "image";
  const at::Tensor& pixels = named_tensor(inputs, name, is_clip ? 5 : 4);
  const int64_t stride = autoencoder.spatial_stride();
  const int64_t channels = autoencoder.pixel_channels();
  if (pixels.size(1) != channels || pixels.numel() == 0 || pixels.size(-2) % stride != 0 ||
      pixels.size(-1) % stride != 0) {
    invalid("tensor '" + name + "': shape " + shape_text(pixels) + ", [B, " + number(channels) +
            (is_clip ? ", T, H, W]" : ", H, W]") + " with multiples of " + number(stride) +
            " expected");
  }
  if (!is_clip) return {{"latents", autoencoder.encode(pixels.unsqueeze(2), runner)}};
  check_frames(pixels.size(2), latents_.takes_clips);
  return {{"latents", autoencoder.encode(pixels, runner)}};
}

NamedTensors ComponentModel::probe_denoiser(Denoiser& denoiser, const NamedTensors& inputs,
                                            BlockRunner& runner) const {
  const std::vector<ConditioningEntry> entries = denoiser.entries();
  std::vector<std::string_view> known = {"latents", "sigma"};
  for (const ConditioningEntry& entry : entries) {
    known.push_back(entry.name);
    if (entry.width) known.push_back(entry.lengths);
  }
  allow_only(inputs, known);
  const at::Tensor latents = named_tensor(inputs, "latents", 5).to(denoiser.dtype());
  std::vector<Conditioning> cond(static_cast<size_t>(latents.size(0)));
  for (const ConditioningEntry& entry : entries) add_entry(cond, inputs, entry);
  std::vector<const Conditioning*> pointers;
  for (const Conditioning& sample : cond) pointers.push_back(&sample);
  const at::Tensor& sigma = named_tensor(inputs, "sigma", 1);
  return {{"velocity",
           run(denoiser, {.x_BCTHW = latents, .sigma_B = sigma, .cond = pointers}, runner)}};
}

}  // namespace atelier
