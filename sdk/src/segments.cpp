#include "atelier/segments.h"

#include <algorithm>

#include <torch/csrc/autograd/custom_function.h>

#include "atelier/error.h"
#include "atelier/host/sample_scope.h"

#include "ops/autograd_support.h"

namespace atelier {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void check_rows(const char* what, const at::Tensor& t, const Segments& rows) {
  if (t.dim() >= 1 && t.size(0) == rows.total()) return;
  throw Error(ErrorCode::kInvalidArgument,
              c10::str(what, ": a tensor of shape ", t.sizes(), " is not packed by segments of ",
                       rows.total(), " rows"));
}

void check_samples(const char* what, const Segments& a, const Segments& b) {
  if (a.count() == b.count()) return;
  throw Error(ErrorCode::kInvalidArgument,
              c10::str(what, ": ", a.count(), " samples beside ", b.count()));
}

// [S, L, ...] of [S * L, ...].
at::Tensor by_sample(const at::Tensor& t, const Segments& rows) {
  auto sizes = t.sizes().vec();
  sizes[0] = rows.length(0);
  sizes.insert(sizes.begin(), rows.count());
  return t.reshape(sizes);
}

at::Tensor join_copy(const at::Tensor& a, const Segments& a_rows, const at::Tensor& b,
                     const Segments& b_rows) {
  if (a_rows.count() == 1) return at::cat({a, b});
  if (a_rows.is_uniform() && b_rows.is_uniform() && a_rows.count() > 0) {
    at::Tensor joined = at::cat({by_sample(a, a_rows), by_sample(b, b_rows)}, 1);
    auto sizes = a.sizes().vec();
    sizes[0] = a.size(0) + b.size(0);
    return at::_unsafe_view(joined, sizes);
  }
  std::vector<at::Tensor> parts;
  for (int64_t s = 0; s < a_rows.count(); ++s) {
    parts.push_back(a.narrow(0, a_rows.offset(s), a_rows.length(s)));
    parts.push_back(b.narrow(0, b_rows.offset(s), b_rows.length(s)));
  }
  if (parts.empty()) return a.clone();
  return at::cat(parts);
}

// One sample gives slices of `joined`; several are copied, so that each result is packed.
std::pair<at::Tensor, at::Tensor> split_copy(const at::Tensor& joined, const Segments& a_rows,
                                             const Segments& b_rows) {
  if (a_rows.count() == 1) {
    return {joined.narrow(0, 0, a_rows.total()).tensor_data(),
            joined.narrow(0, a_rows.total(), b_rows.total()).tensor_data()};
  }
  auto sizes = joined.sizes().vec();
  auto empty = [&](const Segments& rows) {
    sizes[0] = rows.total();
    return at::empty(sizes, joined.options());
  };
  at::Tensor a = empty(a_rows), b = empty(b_rows);
  if (a_rows.is_uniform() && b_rows.is_uniform() && a_rows.count() > 0) {
    const int64_t length = a_rows.length(0);
    at::Tensor all = by_sample(joined, join(a_rows, b_rows));
    by_sample(a, a_rows).copy_(all.narrow(1, 0, length));
    by_sample(b, b_rows).copy_(all.narrow(1, length, b_rows.length(0)));
    return {a, b};
  }
  for (int64_t s = 0; s < a_rows.count(); ++s) {
    const int64_t begin = a_rows.offset(s) + b_rows.offset(s), length = a_rows.length(s);
    a.narrow(0, a_rows.offset(s), length).copy_(joined.narrow(0, begin, length));
    b.narrow(0, b_rows.offset(s), b_rows.length(s))
        .copy_(joined.narrow(0, begin + length, b_rows.length(s)));
  }
  return {a, b};
}

struct JoinRows : torch::autograd::Function<JoinRows> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& a, const at::Tensor& a_rows,
                            const at::Tensor& b, const at::Tensor& b_rows) {
    ctx->saved_data["a"] = a_rows;
    ctx->saved_data["b"] = b_rows;
    ctx->set_materialize_grads(false);
    return join_copy(a, Segments::from_tensor(a_rows), b, Segments::from_tensor(b_rows));
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list result(4);
    if (!grads[0].defined()) return result;
    std::tie(result[0], result[2]) =
        split_copy(grads[0], Segments::from_tensor(ctx->saved_data["a"].toTensor()),
                   Segments::from_tensor(ctx->saved_data["b"].toTensor()));
    return result;
  }
};

struct SplitRows : torch::autograd::Function<SplitRows> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& joined,
                               const at::Tensor& a_rows, const at::Tensor& b_rows) {
    ctx->saved_data["a"] = a_rows;
    ctx->saved_data["b"] = b_rows;
    ctx->saved_data["sizes"] = joined.sizes().vec();
    ctx->set_materialize_grads(false);
    auto [a, b] = split_copy(joined, Segments::from_tensor(a_rows), Segments::from_tensor(b_rows));
    return {a, b};
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list result(3);
    const at::Tensor& given = grads[0].defined() ? grads[0] : grads[1];
    if (!given.defined()) return result;
    const Segments a_rows = Segments::from_tensor(ctx->saved_data["a"].toTensor());
    const Segments b_rows = Segments::from_tensor(ctx->saved_data["b"].toTensor());
    auto sizes = ctx->saved_data["sizes"].toIntVector();
    auto or_zeros = [&](const at::Tensor& grad, const Segments& rows) {
      sizes[0] = rows.total();
      return grad.defined() ? grad : at::zeros(sizes, given.options());
    };
    result[0] = join_copy(or_zeros(grads[0], a_rows), a_rows, or_zeros(grads[1], b_rows), b_rows);
    return result;
  }
};

// Rows of samples that have adapters of their own are known by these.
void note(const Segments& rows) {
  if (ops::SampleScope* scope = ops::SampleScope::current()) scope->note(rows);
}

}  // namespace

Segments::Segments(const std::vector<int64_t>& lengths) {
  offsets_ = at::empty({static_cast<int64_t>(lengths.size()) + 1}, at::kLong);
  int64_t* data = offsets_.mutable_data_ptr<int64_t>();
  data[0] = 0;
  for (size_t s = 0; s < lengths.size(); ++s) {
    if (lengths[s] < 0) {
      throw Error(ErrorCode::kInvalidArgument,
                  c10::str("segments: sample ", s, " has ", lengths[s], " rows"));
    }
    data[s + 1] = data[s] + lengths[s];
  }
  data_ = data;
  note(*this);
}

Segments Segments::uniform(int64_t count, int64_t length) {
  return Segments(std::vector<int64_t>(count, length));
}

Segments Segments::from_tensor(at::Tensor offsets) {
  const bool shaped = offsets.defined() && (offsets.dim() == 1 || offsets.dim() == 2) &&
                      offsets.numel() >= 1 && offsets.scalar_type() == at::kLong &&
                      offsets.is_cpu();
  if (!shaped) {
    throw Error(ErrorCode::kInvalidArgument,
                "segments: offsets must be an int64 tensor [S + 1] on the CPU");
  }
  Segments result;
  result.offsets_ = offsets.contiguous();
  result.data_ = result.offsets_.const_data_ptr<int64_t>();
  const int64_t count = result.offsets_.size(-1);
  for (int64_t i = 0; i < result.offsets_.numel(); i += count) {
    const int64_t* const begin = result.data_ + i;
    if (*begin != 0 || !std::is_sorted(begin, begin + count))
      throw Error(ErrorCode::kInvalidArgument, "segments: offsets do not ascend from 0");
  }
  note(result);
  return result;
}

Segments Segments::shared(const at::Tensor& offsets_of_ranks, int64_t rank) {
  return from_tensor(at::cat({offsets_of_ranks.narrow(0, rank, 1), offsets_of_ranks}));
}

int64_t Segments::longest() const {
  int64_t result = 0;
  for (int64_t s = 0; s < count(); ++s) result = std::max(result, length(s));
  return result;
}

bool Segments::is_uniform() const {
  for (int64_t s = 1; s < count(); ++s) {
    if (length(s) != length(0)) return false;
  }
  return true;
}

Segments join(const Segments& a, const Segments& b) {
  check_samples("join", a, b);
  if (a.ranks() != b.ranks())
    throw Error(ErrorCode::kInvalidArgument, "join: rows that are shared out beside whole ones");
  return Segments::from_tensor(a.tensor() + b.tensor());
}

at::Tensor join_rows(const at::Tensor& a, const Segments& a_rows, const at::Tensor& b,
                     const Segments& b_rows) {
  check_samples("join_rows", a_rows, b_rows);
  check_rows("join_rows", a, a_rows);
  check_rows("join_rows", b, b_rows);
  if (!ops::needs_graph({a, b})) return join_copy(a, a_rows, b, b_rows);
  return JoinRows::apply(a, a_rows.tensor(), b, b_rows.tensor());
}

std::pair<at::Tensor, at::Tensor> split_rows(const at::Tensor& joined, const Segments& a_rows,
                                             const Segments& b_rows) {
  check_samples("split_rows", a_rows, b_rows);
  if (joined.dim() < 1 || joined.size(0) != a_rows.total() + b_rows.total()) {
    throw Error(ErrorCode::kInvalidArgument,
                c10::str("split_rows: a tensor of shape ", joined.sizes(), " is not ",
                         a_rows.total(), " and ", b_rows.total(), " rows"));
  }
  if (!ops::needs_graph({joined})) return split_copy(joined, a_rows, b_rows);
  variable_list parts = SplitRows::apply(joined, a_rows.tensor(), b_rows.tensor());
  return {parts[0], parts[1]};
}

}  // namespace atelier
