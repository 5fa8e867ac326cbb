// Shape letters: P ranks, n the most rows of a rank, N rows of all ranks, H heads, d head width.
#include "ops/shared_attention.h"

#include <algorithm>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "atelier/error.h"

#include "ops/autograd_support.h"
#include "ops/merged_attention.h"

namespace atelier::ops {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

SequenceGroup& group_of(const Segments& rows) {
  SequenceGroup* const group = SequenceScope::current();
  if (group == nullptr || group->size() != rows.ranks())
    throw Error(ErrorCode::kInternal, "rows are shared out, and not among the ranks of now");
  return *group;
}

int64_t most_rows(const Segments& rows) {
  int64_t most = 0;
  for (int64_t r = 0; r < rows.ranks(); ++r) most = std::max(most, rows.offset_of(r, rows.count()));
  return most;
}

namespace {

// Calls `visit` with rank, first row there and number of rows: the order of all rows is that of
// samples, and of a sample that of the ranks.
template <typename F>
void visit_rows(const Segments& rows, F&& visit) {
  for (int64_t s = 0; s < rows.count(); ++s) {
    for (int64_t r = 0; r < rows.ranks(); ++r) {
      const int64_t first = rows.offset_of(r, s), length = rows.offset_of(r, s + 1) - first;
      if (length > 0) visit(r, first, length);
    }
  }
}

// [P, n, ...] of all ranks to [N, ...].
Tensor in_order(const Tensor& of_ranks, const Segments& rows) {
  const int64_t n = of_ranks.size(1);
  int64_t all = 0;
  visit_rows(rows, [&](int64_t, int64_t, int64_t length) { all += length; });
  if (rows.count() == 1 && all == rows.ranks() * n) return of_ranks.flatten(0, 1);
  std::vector<Tensor> parts;
  visit_rows(rows, [&](int64_t r, int64_t first, int64_t length) {
    parts.push_back(of_ranks[r].narrow(0, first, length));
  });
  return parts.empty() ? of_ranks.flatten(0, 1) : at::cat(parts);
}

// parts: this rank's rows, [rows.total(), H, d] each. Returns all rows of this rank's heads,
// [N, H / P, d] each.
variable_list rows_to_heads(const variable_list& parts, const Segments& rows) {
  SequenceGroup& group = group_of(rows);
  const int64_t P = group.size();
  int64_t heads = 0, first = 0;
  for (const Tensor& part : parts) heads += part.size(1) / P;
  const Tensor sent = at::empty({P, most_rows(rows), heads, parts[0].size(2)}, parts[0].options());
  for (const Tensor& part : parts) {
    const int64_t count = part.size(1) / P;
    sent.narrow(1, 0, rows.total())
        .narrow(2, std::exchange(first, first + count), count)
        .copy_(part.unflatten(1, {P, count}).transpose(0, 1));
  }
  const Tensor received = group.exchange(sent);
  variable_list result;
  first = 0;
  for (const Tensor& part : parts) {
    const int64_t count = part.size(1) / P;
    result.push_back(in_order(received.narrow(2, std::exchange(first, first + count), count), rows)
                         .tensor_data());
  }
  return result;
}

// The inverse of rows_to_heads(), and what its gradients go through.
variable_list heads_to_rows(const variable_list& parts, const Segments& rows) {
  SequenceGroup& group = group_of(rows);
  int64_t heads = 0, first = 0;
  for (const Tensor& part : parts) heads += part.size(1);
  const Tensor sent =
      at::empty({group.size(), most_rows(rows), heads, parts[0].size(2)}, parts[0].options());
  for (const Tensor& part : parts) {
    const Tensor to = sent.narrow(2, std::exchange(first, first + part.size(1)), part.size(1));
    int64_t row = 0;
    visit_rows(rows, [&](int64_t r, int64_t begin, int64_t length) {
      to[r]
          .narrow(0, begin, length)
          .copy_(part.narrow(0, std::exchange(row, row + length), length));
    });
  }
  const Tensor received = group.exchange(sent);
  variable_list result;
  first = 0;
  for (const Tensor& part : parts) {
    result.push_back(received.narrow(1, 0, rows.total())
                         .narrow(2, std::exchange(first, first + part.size(1)), part.size(1))
                         .transpose(0, 1)
                         .flatten(1, 2)
                         .tensor_data());
  }
  return result;
}

struct ToHeads : torch::autograd::Function<ToHeads> {
  static variable_list forward(AutogradContext* ctx, const Tensor& q, const Tensor& k,
                               const Tensor& v, const Tensor& rows) {
    ctx->saved_data["rows"] = rows;
    return rows_to_heads({q, k, v}, Segments::from_tensor(rows));
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list result =
        heads_to_rows(grads, Segments::from_tensor(ctx->saved_data["rows"].toTensor()));
    result.emplace_back();
    return result;
  }
};

struct ToRows : torch::autograd::Function<ToRows> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& rows) {
    ctx->saved_data["rows"] = rows;
    return heads_to_rows({x}, Segments::from_tensor(rows))[0];
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    return {rows_to_heads(grads, Segments::from_tensor(ctx->saved_data["rows"].toTensor()))[0],
            Tensor()};
  }
};

// Rows of all ranks together.
Segments whole(const Segments& rows) {
  std::vector<int64_t> lengths(static_cast<size_t>(rows.count()));
  for (int64_t s = 0; s < rows.count(); ++s) {
    for (int64_t r = 0; r < rows.ranks(); ++r)
      lengths[static_cast<size_t>(s)] += rows.offset_of(r, s + 1) - rows.offset_of(r, s);
  }
  return Segments(lengths);
}

}  // namespace

Tensor shared_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Segments& q_rows,
                        const Segments& k_rows, const AttentionOptions& options) {
  if (options.causal || options.window > 0 || options.offset_bias.defined())
    throw Error(ErrorCode::kUnsupported,
                "attention: causal, window and bias are not for rows that are shared out");
  const bool has_groups = options.query_sees.defined();
  if (has_groups || k.size(1) % q_rows.ranks() != 0 ||
      !at::equal(q_rows.tensor(), k_rows.tensor())) {
    const KeySet keys{k, v, k_rows, options.query_sees, options.key_groups};
    return merged_attention(q, q_rows, {&keys, 1},
                            {.scale = options.scale, .softcap = options.softcap});
  }
  const bool has_graph = needs_graph({q, k, v});
  const variable_list all =
      has_graph ? ToHeads::apply(q, k, v, q_rows.tensor()) : rows_to_heads({q, k, v}, q_rows);
  const Tensor attended = attention(all[0], all[1], all[2], whole(q_rows), options)
                              .unflatten(1, {all[0].size(1), all[0].size(2)});
  const Tensor own =
      has_graph ? ToRows::apply(attended, q_rows.tensor()) : heads_to_rows({attended}, q_rows)[0];
  return own.flatten(1, 2);
}

Tensor gather_ranks(const Tensor& own, const Segments& rows) {
  std::vector<int64_t> sizes = own.sizes().vec();
  sizes[0] = most_rows(rows);
  Tensor part = own;
  if (sizes[0] != own.size(0)) {
    part = at::empty(sizes, own.options());
    part.narrow(0, 0, own.size(0)).copy_(own);
  }
  return group_of(rows).gather(part);
}

Tensor gather_rows(const Tensor& own, const Segments& rows) {
  return in_order(gather_ranks(own, rows), rows);
}

}  // namespace atelier::ops
