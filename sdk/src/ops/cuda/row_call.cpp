#include "ops/cuda/row_call.h"

#include "atelier/host/upload.h"

#include "ops/cuda/row_plan.h"

namespace atelier::ops::cuda {
namespace {

using at::Tensor;

Element element_of(const Tensor& x) {
  return x.scalar_type() == at::kBFloat16 ? Element::kBFloat16
         : x.scalar_type() == at::kHalf   ? Element::kFloat16
                                          : Element::kFloat32;
}

}  // namespace

bool is_aligned(const void* data, int64_t stride, int64_t element_bytes) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride * element_bytes % 16 == 0;
}

Input input_of(const Tensor& t, int64_t stride, bool is_wide) {
  if (!t.defined()) return {};
  const void* data = t.const_data_ptr();
  return {data, stride, is_aligned(data, stride, t.element_size()), is_wide};
}

Input rows_of(const Tensor& t) {
  return t.defined() ? input_of(t, t.size(-1)) : Input();
}

Input columns_of(const Tensor& t, const Tensor& x) {
  if (!t.defined()) return {};
  return input_of(t, t.dim() == 1 ? 0 : t.stride(0), t.scalar_type() != x.scalar_type());
}

Tensor readable(const Tensor& t, const Tensor& x) {
  const bool is_known = t.scalar_type() == x.scalar_type() || t.scalar_type() == at::kFloat;
  return is_known ? t : t.to(at::kFloat);
}

Output output_of(Tensor& t) {
  void* data = t.mutable_data_ptr();
  return {data, t.size(-1), is_aligned(data, t.size(-1), t.element_size())};
}

void put_codes(RowArguments& arguments, RowCodes& codes) {
  arguments.codes = output_of(codes.codes);
  arguments.new_scales = codes.scales.mutable_data_ptr<float>();
  arguments.is_int8 = codes.codes.scalar_type() == at::kChar;
}

void put_sum(const Tensor& totals, int64_t k, Tensor& gradient) {
  if (gradient.defined()) gradient.copy_(totals.select(1, k).view(gradient.sizes()));
}

Input wide_columns(const Tensor& t) {
  return t.defined() ? input_of(t, t.dim() == 1 ? 0 : t.stride(0), /*is_wide=*/true) : Input();
}

RowCall::RowCall(const RowKernel& kernel, const Tensor& like, const Segments& rows, int64_t width,
                 bool adds_up_rows, int64_t column_sums)
    : kernel_(kernel), like_(like), rows_(rows), column_sums_(column_sums) {
  const RowShape shape = {width, static_cast<int>(like.element_size()),
                          kernel.lane_packs[static_cast<int>(element_of(like))], adds_up_rows,
                          column_sums > 0};
  const RowPlan plan = plan_rows(shape, rows.tensor().const_data_ptr<int64_t>(), rows.count());
  grid_ = plan.grid;
  if (rows.count() <= kSamplesByValue) return;
  std::vector<int64_t> chunks;
  for (int64_t s = 0; s < rows.count(); ++s)
    chunks.push_back(plan.first_chunks[s + 1] - plan.first_chunks[s]);
  offsets_ = offsets_on(rows, like.device());
  first_chunks_ = offsets_on(Segments(chunks), like.device());
  grid_.samples.many_offsets = offsets_.const_data_ptr<int64_t>();
  grid_.samples.many_first_chunks = first_chunks_.const_data_ptr<int64_t>();
}

Tensor RowCall::run() {
  const auto floats = like_.options().dtype(at::kFloat);
  Tensor parts;
  if (column_sums_ > 0) {
    parts = at::empty({grid_.chunks * grid_.rows_at_once, column_sums_, grid_.width}, floats);
    arguments.partial_sums = parts.mutable_data_ptr<float>();
  }
  if (grid_.blocks() > 0 && grid_.width > 0)
    run_rows(kernel_, element_of(like_), grid_, arguments, like_.device());
  if (column_sums_ == 0) return Tensor();
  Tensor totals = at::empty({rows_.count(), column_sums_, grid_.width}, floats);
  if (totals.numel() > 0) {
    run_totals({parts.const_data_ptr<float>(), totals.mutable_data_ptr<float>(),
                column_sums_ * grid_.width, grid_.rows_at_once, grid_.samples},
               like_.device());
  }
  return totals;
}

}  // namespace atelier::ops::cuda
