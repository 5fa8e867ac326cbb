#include "atelier/host/upload.h"

#include "atelier/nn/waves.h"

#include "support/device_calls.h"
#include "support/tensors.h"

namespace atelier::ops {

TEST_CASE("Offsets that are alike are copied to a device once", "[upload]") {
  const test::DeviceCalls calls;
  const at::Tensor first = offsets_on(Segments({4, 1, 7}), at::kMeta);
  CHECK(first.sizes() == at::IntArrayRef({4}));
  CHECK(calls.copies() == 1);
  CHECK(offsets_on(Segments({4, 1, 7}), at::kMeta).is_same(first));
  CHECK(calls.copies() == 1);
  CHECK_FALSE(offsets_on(Segments({4, 2, 6}), at::kMeta).is_same(first));
  CHECK(offsets_on(Segments({4, 1, 7}), at::kMeta, at::kInt).scalar_type() == at::kInt);
  CHECK(calls.copies() == 3);
  CHECK(calls.waits() == 0);
}

TEST_CASE("Offsets that were not used for long are let go", "[upload]") {
  const Segments old({1, 2, 3});
  const at::Tensor first = offsets_on(old, at::kMeta);
  for (int64_t i = 0; i < 127; ++i) offsets_on(Segments({10 + i}), at::kMeta);
  CHECK(offsets_on(old, at::kMeta).is_same(first));
  for (int64_t i = 0; i < 128; ++i) offsets_on(Segments({150 + i}), at::kMeta);
  CHECK_FALSE(offsets_on(old, at::kMeta).is_same(first));
}

TEST_CASE("Offsets made while nothing is recorded serve a backward pass later", "[upload]") {
  at::Tensor made;
  {
    const c10::InferenceMode inference;
    made = offsets_on(Segments({3, 8}), at::kMeta);
  }
  CHECK_FALSE(made.is_inference());
}

TEST_CASE("On the host offsets are those of the rows, and nothing is copied", "[upload]") {
  const Segments rows({4, 1});
  const test::DeviceCalls calls;
  CHECK(offsets_on(rows, at::kCPU).is_same(rows.tensor()));
  const at::Tensor there = at::ones({2});
  CHECK(upload(there, at::kCPU).is_same(there));
  CHECK(calls.copies() == 0);
}

TEST_CASE("What is recorded keeps the offsets that it reads, and copies nothing from the host",
          "[upload][graphs]") {
  const Segments known({5, 9}), unknown({5, 10});
  const at::Tensor there = offsets_on(known, at::kMeta);
  {
    const RecordedUploads recorded;
    CHECK(offsets_on(known, at::kMeta).is_same(there));
    CHECK(recorded.kept().size() == 1);
    CHECK(recorded.kept()[0].is_same(there));
    CHECK(upload(there, at::kMeta).is_same(there));
    for (const auto& copies : {std::function<void()>([&] { offsets_on(unknown, at::kMeta); }),
                               {[] { upload(at::ones({2}), at::kMeta); }}})
      CHECK(test::error_of(copies).code() == ErrorCode::kUnsupported);
  }
  CHECK(offsets_on(unknown, at::kMeta).is_meta());
}

TEST_CASE("A small tensor reaches a device without waiting", "[upload]") {
  const test::DeviceCalls calls;
  CHECK(upload(at::ones({2, 3}), at::kMeta).is_meta());
  CHECK(calls.copies() == 1);
  CHECK(calls.waits() == 0);
}

TEST_CASE("Waves of rows are made where they are used", "[upload][waves]") {
  const test::DeviceCalls calls;
  const nn::Waves waves = nn::row_waves(Segments({3, 2}), 4, 100.0, at::kMeta);
  CHECK(waves.cos.sizes() == at::IntArrayRef({5, 2}));
  CHECK(waves.sin.is_meta());
  CHECK(calls.copies() == 0);
}

}  // namespace atelier::ops
