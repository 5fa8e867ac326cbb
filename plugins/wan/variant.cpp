#include "variant.h"

namespace wan {

std::string_view Variant::negative_prompt() const {
  return {};
}

std::optional<atelier::Conditioning> Variant::encode(const atelier::EncodeInputs&,
                                                     atelier::BlockRunner&) {
  return std::nullopt;
}

std::optional<std::vector<int64_t>> Variant::ids(const atelier::EncodeInputs&) const {
  return std::nullopt;
}

atelier::MediaTarget Variant::target(const atelier::Inputs&,
                                     const atelier::MediaTarget& asked) const {
  return asked;
}

bool Variant::runs(std::string_view, const atelier::Inputs&) const {
  return true;
}

std::vector<atelier::Piece> Variant::pieces(const atelier::Inputs&,
                                            const atelier::MediaTarget&) const {
  return {};
}

std::optional<int64_t> Variant::latent_frames(const atelier::Conditioning&) const {
  return std::nullopt;
}

std::optional<atelier::FinishedLatents> Variant::to_decode(const at::Tensor&,
                                                           const atelier::Conditioning&) const {
  return std::nullopt;
}

void Variant::prepare_levels(std::string_view) {}
void Variant::forget_levels() {}

at::Tensor Variant::encode_leading(const atelier::Inputs&, atelier::Conditioning&,
                                   atelier::BlockRunner&) {
  return {};
}

int64_t Variant::leading_frames(const atelier::Conditioning&) const {
  return 0;
}

std::optional<at::Tensor> Variant::denoise(const atelier::DenoiseInputs&, atelier::BlockRunner&) {
  return std::nullopt;
}

std::optional<atelier::GivenLatents> Variant::given(const atelier::Conditioning&,
                                                    at::IntArrayRef) const {
  return std::nullopt;
}

std::optional<at::Tensor> Variant::guide(const atelier::GuideInputs&) {
  return std::nullopt;
}

}  // namespace wan
