#include "host/model/fingerprint.h"

#include "host/files/content_hash.h"
#include "host/files/safetensors_writer.h"
#include "support/files.h"

using namespace atelier;
using namespace atelier::files;
using namespace atelier::model;
using namespace atelier::weights;
using test::Folder;

namespace {

// A checkpoint of 1 MiB, four times as much as is read of it.
std::string write_checkpoint(const std::string& path) {
  write_safetensors(path, {{"a", at::arange(262'144, at::kFloat)}});
  return path;
}

LoadedPart part_of(const std::string& path, std::string variant = "base") {
  return {{"dit", std::move(variant), "", "toy", {{"layers", int64_t{2}}, {"eps", 1e-6}}},
          Checkpoint::open(path, {path})};
}

void flip(const std::string& path, size_t at) {
  std::string bytes = test::read_bytes(path);
  bytes[at] ^= 1;
  test::write_bytes(path, bytes);
}

}  // namespace

TEST_CASE("Fingerprints are of contents, not of paths", "[fingerprint]") {
  Folder folder;
  const std::string path = write_checkpoint(folder / "a.safetensors");
  const std::string print = fingerprint(part_of(path));
  CHECK(print.size() == 32);
  CHECK(fingerprint(part_of(path)) == print);
  CHECK(fingerprint(part_of(write_checkpoint(folder / "b.safetensors"))) == print);
  CHECK(fingerprint(part_of(path, "other")) != print);

  LoadedPart part = part_of(path);
  part.detection.config["eps"] = 1e-5;
  CHECK(fingerprint(part) != print);
}

TEST_CASE("Fingerprints change with the first, the last and sampled bytes", "[fingerprint]") {
  Folder folder;
  const std::string path = write_checkpoint(folder / "a.safetensors");
  const std::string print = fingerprint(part_of(path));
  const size_t size = test::read_bytes(path).size(), tensors = size - (1 << 20);
  for (const size_t at : {tensors, size - 1, size - 4096}) {
    flip(path, at);
    CHECK(fingerprint(part_of(path)) != print);
    flip(path, at);
  }
  CHECK(fingerprint(part_of(path)) == print);
}

TEST_CASE("Tokenizers are told apart by the files they are read from", "[fingerprint]") {
  Folder folder;
  test::write_bytes(folder / "t/tokenizer.json", "{}");
  const std::string print = tokenizer_fingerprint(folder / "t");
  test::write_bytes(folder / "t/README.md", "says nothing");
  CHECK(tokenizer_fingerprint(folder / "t") == print);
  test::write_bytes(folder / "t/tokenizer.json", "{ }");
  CHECK(tokenizer_fingerprint(folder / "t") != print);
  test::write_bytes(folder / "s/tokenizer.model", "x");
  const std::string pieces = tokenizer_fingerprint(folder / "s");
  test::write_bytes(folder / "s/tokenizer.model", "y");
  CHECK(tokenizer_fingerprint(folder / "s") != pieces);
  test::write_bytes(folder / "old/vocab.json", "{}");
  const std::string vocabulary = tokenizer_fingerprint(folder / "old/vocab.json");
  test::write_bytes(folder / "old/merges.txt", "a b");
  CHECK(tokenizer_fingerprint(folder / "old/vocab.json") != vocabulary);
  CHECK_THROWS_AS(tokenizer_fingerprint(folder / "none"), Error);
}

TEST_CASE("Contents are told apart by a hash of 128 bits", "[fingerprint]") {
  Folder folder;
  test::write_bytes(folder / "empty", "");
  CHECK(hash_file(folder / "empty") == "99aa06d3014798d86001c324468d497f");  // of the algorithm
  ContentHash one, other;
  one.add("a").add("bc");
  other.add("ab").add("c");
  CHECK(one.hex() != other.hex());
}
