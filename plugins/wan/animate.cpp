// Shape letters: B samples, C channels, F frames of the face, T latent frames, S side of a picture,
// N rows of the latents, M rows of the faces, D width.
#include "animate.h"

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/named_inputs.h"
#include "atelier/ops/attention.h"

#include "dit_block.h"

namespace wan {

using atelier::Segments;
using atelier::Tensors;

namespace {

constexpr int64_t kPicturesAtOnce = 2;    // of the face: what the first level makes is large
constexpr double kDirectionShift = 1e-8;  // of weights, before they are made orthogonal

at::Tensor row_normed(const at::Tensor& x, double eps) {
  return at::layer_norm(x, {x.size(-1)}, {}, {}, eps);
}

// Pictures in [-1, 1].
at::Tensor values_of(const at::Tensor& pictures, at::ScalarType dtype) {
  if (pictures.scalar_type() != at::kByte) return pictures.contiguous().to(dtype);
  return pictures.to(at::kFloat).div_(127.5).sub_(1).to(dtype);
}

[[noreturn]] void refuse(const std::string& name, const at::Tensor& given,
                         const std::string& wanted) {
  throw atelier::Error(
      atelier::ErrorCode::kInvalidArgument,
      name + " of shape " + atelier::shape_text(given) + ", " + wanted + " expected");
}

}  // namespace

FaceAdapter::FaceAdapter(Module* parent, std::string name, const AnimateConfig& c)
    : Block(parent, std::move(name)),
      head_dim_(c.head_dim),
      eps_(c.norm_eps),
      kv_(this, "linear1_kv", c.width, 2 * c.width),
      q_(this, "linear1_q", c.width, c.width),
      out_(this, "linear2", c.width, c.width),
      norm_q_(this, "q_norm", c.head_dim, c.norm_eps),
      norm_k_(this, "k_norm", c.head_dim, c.norm_eps) {}

FaceAdapter::~FaceAdapter() = default;

Tensors FaceAdapter::forward(const Tensors& in) {
  const at::Tensor q = q_.forward(row_normed(in[0], eps_)).view({in[0].size(0), -1, head_dim_});
  const at::Tensor kv =
      kv_.forward(row_normed(in[1], eps_)).view({in[1].size(0), 2, -1, head_dim_});
  const at::Tensor seen = atelier::ops::attention(
      norm_q_.forward(q), norm_k_.forward(kv.select(1, 0)), kv.select(1, 1).contiguous(),
      Segments::from_tensor(in[2]), Segments::from_tensor(in[3]), {});
  return {in[0] + out_.forward(seen)};
}

AnimateAdapter::AnimateAdapter(const AnimateConfig& c)
    : Module(nullptr, ""),
      config_(c),
      pose_(this, "pose_patch_embedding", c.channels, c.width, {1, c.patch, c.patch},
            {.stride = {1, c.patch, c.patch}}),
      directions_(
          declare("motion_encoder.dec.direction.weight", {c.motion_width, c.motions}, kFloat32)),
      motion_(this, "motion_encoder", c),
      face_(this, "face_encoder", c) {
  for (int64_t i = 0; i < c.adapters; ++i)
    adapters_.push_back(
        std::make_unique<FaceAdapter>(this, "face_adapter.fuser_blocks." + std::to_string(i), c));
}

AnimateAdapter::~AnimateAdapter() = default;

at::ScalarType AnimateAdapter::dtype() const {
  return pose_.weight->draw().scalar_type();
}

at::Tensor AnimateAdapter::pose_rows(const at::Tensor& pose_BCTHW) const {
  return pose_.forward(pose_BCTHW.to(dtype())).permute({0, 2, 3, 4, 1}).flatten(1, 3);
}

at::Tensor AnimateAdapter::face_rows(const at::Tensor& faces_BCFHW, atelier::BlockRunner& runner) {
  const int64_t B = faces_BCFHW.size(0), S = config_.face_side();
  if (faces_BCFHW.size(3) != S || faces_BCFHW.size(4) != S)
    refuse(kAnimateFaces, faces_BCFHW, std::to_string(S) + " x " + std::to_string(S) + " pixels");
  const at::Tensor directions =
      std::get<0>(at::linalg_qr(directions_->draw() + kDirectionShift, "reduced"));
  Tensors motions;
  for (const at::Tensor& some : faces_BCFHW.transpose(1, 2).flatten(0, 1).split(kPicturesAtOnce))
    motions.push_back(runner.run(motion_, {values_of(some, dtype()), directions})[0]);
  const at::Tensor rows =
      runner.run(face_, {at::cat(motions).view({B, faces_BCFHW.size(2), -1})})[0];
  return at::constant_pad_nd(rows, {0, 0, 0, 0, 1, 0});
}

FaceAdapter* AnimateAdapter::behind(int64_t index) const {
  const int64_t number = index / config_.interval;
  const bool is_there = index % config_.interval == 0 && number < config_.adapters;
  return is_there ? adapters_[static_cast<size_t>(number)].get() : nullptr;
}

atelier::NamedTensors AnimateAdapter::probe(const atelier::NamedTensors& inputs,
                                            atelier::BlockRunner& runner) {
  atelier::allow_only(inputs, {"pose", "faces", "rows", "face_rows"});
  atelier::NamedTensors made;
  if (inputs.contains("pose"))
    made["pose_rows"] = pose_rows(atelier::named_tensor(inputs, "pose", 5));
  if (inputs.contains("faces"))
    made["face_rows"] = face_rows(atelier::named_tensor(inputs, "faces", 5), runner);
  if (!inputs.contains("rows")) return made;
  const at::Tensor& rows = atelier::named_tensor(inputs, "rows", 3);
  const at::Tensor& faces = atelier::named_tensor(inputs, "face_rows", 4);
  const int64_t frames = faces.size(0) * faces.size(1);
  const Tensors in = {rows.flatten(0, 1), faces.flatten(0, 2),
                      Segments::uniform(frames, rows.size(1) / faces.size(1)).tensor(),
                      Segments::uniform(frames, faces.size(2)).tensor()};
  Tensors adapted;
  for (const auto& adapter : adapters_)
    adapted.push_back(runner.run(*adapter, in)[0].view(rows.sizes()));
  made["adapted"] = at::stack(adapted);
  return made;
}

void Animation::begin(Pass& pass) {
  Tensors poses, faces;
  for (const atelier::Conditioning* cond : pass.in.cond) {
    poses.push_back(atelier::named_tensor(*cond, kAnimatePose, 4));
    faces.push_back(atelier::named_tensor(*cond, kAnimateFaces, 4));
  }
  const int64_t B = std::ssize(poses), T = pass.frames, cells = pass.height * pass.width;
  const at::Tensor pose = at::stack(poses);
  at::IntArrayRef latents = pass.in.x_BCTHW.sizes();
  if (pose.size(2) + 1 != T || pose.size(3) != latents[3] || pose.size(4) != latents[4])
    refuse(kAnimatePose, pose,
           "a frame less than the latents " + atelier::shape_text(pass.in.x_BCTHW));
  const at::Tensor of_pose = at::constant_pad_nd(adapter_.pose_rows(pose), {0, 0, cells, 0});
  pass.x = pass.x + pass.placed(of_pose.flatten(0, 1)).to(pass.x.scalar_type());

  const at::Tensor rows = adapter_.face_rows(at::stack(faces), pass.runner);
  if (rows.size(1) != T)
    refuse(kAnimateFaces, faces[0], std::to_string(4 * (T - 2) + 1) + " frames");
  faces_ = rows.flatten(0, 2);
  frame_offsets_ = pass.rows.cut(Segments::uniform(B * T, cells)).tensor();
  face_offsets_ = Segments::uniform(B * T, rows.size(2)).tensor();
}

void Animation::after(int64_t index, Pass& pass) {
  FaceAdapter* const adapter = adapter_.behind(index);
  if (adapter == nullptr) return;
  const at::Tensor x = pass.x.to(faces_.scalar_type());
  pass.x = pass.runner.run(*adapter, {x, faces_, frame_offsets_, face_offsets_})[0].to(
      pass.x.scalar_type());
}

}  // namespace wan
