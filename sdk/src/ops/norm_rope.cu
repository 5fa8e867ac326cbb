// The norm of heads and their rotation. A row of the grid is a head; its columns are the pairs of
// channels that are rotated together, half as many as channels. A lane has one pack of first
// channels and one of second ones.
#include "ops/cuda/row_functor.h"
#include "ops/cuda/row_kernel.cuh"

namespace atelier::ops::cuda {

// With 32 bits where that is enough, which is several times as fast.
ATELIER_LANE int64_t quotient(int64_t a, int64_t b) {
  if (((a | b) >> 32) == 0) return uint32_t(a) / uint32_t(b);
  return a / b;
}

template <typename T>
struct Pairs {
  Pack packs[2];  // as they lie in memory
};

// Channels [2 * column, 2 * column + 2 * count), or [column, column + count) of each half.
template <typename T>
ATELIER_LANE Pairs<T> load_pairs(const typename T::Bits* head, bool is_aligned, bool halves,
                                 const Place& place) {
  constexpr int kElements = kPackElements<T>;
  const int count = place.count<T>(0);
  if (halves) {
    return {{load_pack<T>(head + place.column, count, is_aligned),
             load_pack<T>(head + place.width + place.column, count, is_aligned)}};
  }
  const typename T::Bits* from = head + 2 * place.column;
  return {{load_pack<T>(from, 2 * count, is_aligned),
           load_pack<T>(from + kElements, 2 * count - kElements, is_aligned)}};
}

template <typename T>
ATELIER_LANE void store_pairs(typename T::Bits* head, bool is_aligned, bool halves,
                              const Place& place, const Pairs<T>& pairs) {
  constexpr int kElements = kPackElements<T>;
  const int count = place.count<T>(0);
  if (halves) {
    store_pack<T>(head + place.column, pairs.packs[0], count, is_aligned);
    store_pack<T>(head + place.width + place.column, pairs.packs[1], count, is_aligned);
    return;
  }
  typename T::Bits* to = head + 2 * place.column;
  store_pack<T>(to, pairs.packs[0], 2 * count, is_aligned);
  store_pack<T>(to + kElements, pairs.packs[1], 2 * count - kElements, is_aligned);
}

// The first and the second channels of pairs.
template <typename T>
ATELIER_LANE void part(const Pairs<T>& pairs, bool halves, float (&a)[kPackElements<T>],
                       float (&b)[kPackElements<T>]) {
  constexpr int kElements = kPackElements<T>, kHalf = kElements / 2;
  float u[kElements], v[kElements];
  widen<T>(pairs.packs[0], u);
  widen<T>(pairs.packs[1], v);
  ATELIER_UNROLL
  for (int i = 0; i < kHalf; ++i) {
    a[i] = halves ? u[i] : u[2 * i];
    b[i] = halves ? v[i] : u[2 * i + 1];
    a[kHalf + i] = halves ? u[kHalf + i] : v[2 * i];
    b[kHalf + i] = halves ? v[kHalf + i] : v[2 * i + 1];
  }
}

template <typename T>
ATELIER_LANE Pairs<T> join(const float (&a)[kPackElements<T>], const float (&b)[kPackElements<T>],
                           bool halves) {
  constexpr int kElements = kPackElements<T>, kHalf = kElements / 2;
  float u[kElements], v[kElements];
  ATELIER_UNROLL
  for (int i = 0; i < kHalf; ++i) {
    u[2 * i] = halves ? a[2 * i] : a[i];
    u[2 * i + 1] = halves ? a[2 * i + 1] : b[i];
    v[2 * i] = halves ? b[2 * i] : a[kHalf + i];
    v[2 * i + 1] = halves ? b[2 * i + 1] : b[kHalf + i];
  }
  return {{narrow<T>(u), narrow<T>(v)}};
}

// What both directions share.
template <typename T>
struct RopeFunctor : RowFunctor<T, 1> {
  static constexpr int kElements = kPackElements<T>;
  using Bits = typename T::Bits;
  struct Factors {
    float a[kElements], b[kElements];
  };
  struct Angles {
    float cos[kElements], sin[kElements];
  };

  static ATELIER_LANE Factors weight(const RowArguments& arguments, const Place& place) {
    Factors factors;
    part<T>(load_pairs<T>(static_cast<const Bits*>(arguments.weight.data),
                          arguments.weight.is_aligned, arguments.halves, place),
            arguments.halves, factors.a, factors.b);
    return factors;
  }

  static ATELIER_LANE Pairs<T> load_x(const RowArguments& arguments, const Place& place) {
    const int64_t row = quotient(place.row, arguments.heads);
    const int64_t head = place.row - row * arguments.heads;
    const Bits* data = static_cast<const Bits*>(arguments.x.data);
    return load_pairs<T>(data + row * arguments.x.stride + head * arguments.head_stride,
                         arguments.x.is_aligned, arguments.halves, place);
  }

  static ATELIER_LANE Pairs<T> load_joined(const RowArguments& arguments, const Input& from,
                                           const Place& place) {
    return load_pairs<T>(static_cast<const Bits*>(from.data) + joined(arguments, place),
                         from.is_aligned, arguments.halves, place);
  }

  // Where the head stands among those of both streams, in elements.
  static ATELIER_LANE int64_t joined(const RowArguments& arguments, const Place& place) {
    const int64_t before =
        arguments.rows_before != nullptr ? arguments.rows_before[place.sample] : 0;
    return (place.row + before * arguments.heads) * 2 * place.width;
  }

  // `is_joined`: among the heads of both streams.
  static ATELIER_LANE void store(const RowArguments& arguments, const Place& place, bool is_joined,
                                 const float (&a)[kElements], const float (&b)[kElements]) {
    Bits* head = static_cast<Bits*>(arguments.out.data) +
                 (is_joined ? joined(arguments, place) : place.row * 2 * place.width);
    store_pairs<T>(head, arguments.out.is_aligned, arguments.halves, place,
                   join<T>(a, b, arguments.halves));
  }

  static ATELIER_LANE Angles angles(const RowArguments& arguments, const Place& place) {
    const int64_t first = quotient(place.row, arguments.heads) * place.width + place.column;
    const int count = place.count<T>(0);
    const bool is_aligned = arguments.are_angles_aligned;
    Angles result;
    ATELIER_UNROLL
    for (int q = 0; q < kElements / 4; ++q) {
      const int left = count - 4 * q;
      float cos[4], sin[4];
      widen<Float32>(load_pack<Float32>(arguments.cos + first + 4 * q, left, is_aligned), cos);
      widen<Float32>(load_pack<Float32>(arguments.sin + first + 4 * q, left, is_aligned), sin);
      ATELIER_UNROLL
      for (int i = 0; i < 4; ++i) {
        result.cos[4 * q + i] = cos[i];
        result.sin[4 * q + i] = sin[i];
      }
    }
    return result;
  }
};

// x / rms(x) * weight where there is a weight, then rotated.
template <typename T>
struct NormRope : RopeFunctor<T> {
  using Base = RopeFunctor<T>;
  static constexpr int kMostRegisters = 64;
  static constexpr int kElements = Base::kElements, kReductions = 1, kSums = 1, kColumnSums = 0;
  struct Lane {
    Pairs<T> x;
  };

  template <int kPhase, typename ColumnSums>
  static ATELIER_LANE void phase(const RowArguments& arguments, const Place& place, Lane& lane,
                                 ColumnSums&, float (&sums)[kMostSums]) {
    if constexpr (kPhase == 0) {
      lane.x = Base::load_x(arguments, place);
      sums[0] = squares_of<T>(lane.x.packs);
    } else {
      float a[kElements], b[kElements];
      part<T>(lane.x, arguments.halves, a, b);
      const bool has_norm = arguments.weight.data != nullptr;
      if (has_norm) {
        const float inverse = 1.0f / sqrtf(sums[0] / float(2 * place.width) + arguments.eps);
        const typename Base::Factors weight = Base::weight(arguments, place);
        ATELIER_UNROLL
        for (int i = 0; i < kElements; ++i) {
          a[i] *= inverse * weight.a[i];
          b[i] *= inverse * weight.b[i];
        }
      }
      const typename Base::Angles angles = Base::angles(arguments, place);
      ATELIER_UNROLL
      for (int i = 0; i < kElements; ++i) {
        const float u = a[i], v = b[i];
        a[i] = u * angles.cos[i] - v * angles.sin[i];
        b[i] = u * angles.sin[i] + v * angles.cos[i];
      }
      Base::store(arguments, place, /*is_joined=*/true, a, b);
    }
  }
};

// The gradient of x. Column sums: of the weight's first channels and of its second ones.
template <typename T>
struct NormRopeBackward : RopeFunctor<T> {
  using Base = RopeFunctor<T>;
  static constexpr int kElements = Base::kElements, kReductions = 2, kSums = 1, kColumnSums = 2;
  struct Lane {
    Pairs<T> x;
    float a[kElements], b[kElements];  // the gradient, rotated back
    float inverse;
  };

  template <int kPhase, typename ColumnSums>
  static ATELIER_LANE void phase(const RowArguments& arguments, const Place& place, Lane& lane,
                                 ColumnSums& column_sums, float (&sums)[kMostSums]) {
    const bool has_norm = arguments.weight.data != nullptr;
    const float mean = sums[0] / float(2 * place.width);
    if constexpr (kPhase == 0) {
      begin(arguments, place, lane);
      sums[0] = squares_of<T>(lane.x.packs);
      return;
    }
    if constexpr (kPhase == 1) {
      lane.inverse = has_norm ? 1.0f / sqrtf(mean + arguments.eps) : 1.0f;
      sums[0] = 0;
    }
    if (!has_norm) {
      if constexpr (kPhase == 2) Base::store(arguments, place, /*is_joined=*/false, lane.a, lane.b);
      return;
    }
    float a[kElements], b[kElements];
    part<T>(lane.x, arguments.halves, a, b);
    const typename Base::Factors weight = Base::weight(arguments, place);
    ATELIER_UNROLL
    for (int i = 0; i < kElements; ++i) {
      const float u = a[i] * lane.inverse, v = b[i] * lane.inverse;
      const float of_a = lane.a[i] * weight.a[i], of_b = lane.b[i] * weight.b[i];
      if constexpr (kPhase == 1) sums[0] += of_a * u + of_b * v;
      a[i] = lane.inverse * (of_a - u * mean);
      b[i] = lane.inverse * (of_b - v * mean);
      if (kPhase == 2 && arguments.partial_sums != nullptr && place.is_active) {
        column_sums.at[0][0][i] += lane.a[i] * u;
        column_sums.at[1][0][i] += lane.b[i] * v;
      }
    }
    if constexpr (kPhase == 2) Base::store(arguments, place, /*is_joined=*/false, a, b);
  }

 private:
  static ATELIER_LANE void begin(const RowArguments& arguments, const Place& place, Lane& lane) {
    const Pairs<T> grad = Base::load_joined(arguments, arguments.grad, place);
    lane.x = {};
    if (arguments.weight.data != nullptr) lane.x = Base::load_x(arguments, place);
    const typename Base::Angles angles = Base::angles(arguments, place);
    float a[kElements], b[kElements];
    part<T>(grad, arguments.halves, a, b);
    ATELIER_UNROLL
    for (int i = 0; i < kElements; ++i) {
      lane.a[i] = a[i] * angles.cos[i] + b[i] * angles.sin[i];
      lane.b[i] = b[i] * angles.cos[i] - a[i] * angles.sin[i];
    }
  }
};

extern const RowKernel norm_rope_rows = kernel_of<NormRope>();
extern const RowKernel norm_rope_backward_rows = kernel_of<NormRopeBackward>();

}  // namespace atelier::ops::cuda
