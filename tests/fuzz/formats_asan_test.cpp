// Runs each parser over its corpus and over random changes of it, under the address and undefined
// sanitizers.
//
// usage: formats_asan_test CORPUS_FOLDER [CHANGES_PER_TARGET]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "fuzz/entries.h"

namespace {

using Seeds = std::vector<std::string>;

Seeds read_seeds(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  Seeds seeds;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return seeds;
}

std::string change(const Seeds& seeds, std::mt19937_64& random) {
  const auto below = [&](size_t limit) { return static_cast<size_t>(random() % limit); };
  std::string bytes = seeds[below(seeds.size())];
  for (size_t i = 1 + below(4); i > 0; --i) {
    const size_t at = below(bytes.size() + 1);
    const std::string& other = seeds[below(seeds.size())];
    switch (below(6)) {
      case 0:
        if (at < bytes.size()) bytes[at] = static_cast<char>(random());
        break;
      case 1:
        if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 2:
        bytes.erase(at, 1 + below(16));
        break;
      case 3:
        bytes.insert(at, bytes.substr(below(bytes.size() + 1), below(24)));
        break;
      case 4:
        bytes.insert(at, other.substr(below(other.size() + 1), below(64)));
        break;
      default:
        bytes.resize(at);
    }
  }
  return bytes;
}

// The parser gets its own allocation of just that size, so that one byte too far is seen.
void run(const atelier::formats::FuzzTarget& target, const std::string& bytes) {
  const auto exact = std::make_unique<char[]>(bytes.size());
  std::copy(bytes.begin(), bytes.end(), exact.get());
  target.run({exact.get(), bytes.size()});
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: formats_asan_test CORPUS_FOLDER [CHANGES_PER_TARGET]\n");
    return 2;
  }
  const int num_changes = argc > 2 ? std::atoi(argv[2]) : 20000;
  std::mt19937_64 random(1);
  for (const auto& target : atelier::formats::kFuzzTargets) {
    const Seeds seeds = read_seeds(std::filesystem::path(argv[1]) / target.name);
    if (seeds.empty()) {
      std::fprintf(stderr, "no corpus for %s\n", target.name);
      return 1;
    }
    for (const std::string& seed : seeds) {
      run(target, seed);
      for (size_t i = 0; i < std::min<size_t>(seed.size(), 512); ++i)
        run(target, seed.substr(0, i));
    }
    for (int i = 0; i < num_changes; ++i) run(target, change(seeds, random));
    std::printf("%s: %zu seeds, %d changes\n", target.name, seeds.size(), num_changes);
  }
  return 0;
}
